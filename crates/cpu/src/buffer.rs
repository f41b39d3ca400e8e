//! Cache-line-aligned arrays.

use crate::OpError;
use std::alloc::Layout;
use std::ptr::NonNull;

/// Plain numbers: any bytes are valid, and zero bytes mean zero.
pub(crate) trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for i8 {}
impl Plain for u16 {}
impl Plain for i32 {}
impl Plain for f32 {}

/// A zero-initialized array whose first element lies on a cache line.
///
/// The system hands out zero pages on first use, so a large pool costs nothing until it fills.
pub(crate) struct Buffer<T> {
    start: NonNull<T>,
    length: usize,
}

// SAFETY: a buffer owns its elements, like a `Vec` of numbers.
unsafe impl<T: Plain> Send for Buffer<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Buffer<T> {}

impl<T: Plain> Buffer<T> {
    /// `length` zeros.
    pub fn zeroed(op: &'static str, length: usize) -> Result<Self, OpError> {
        let bytes = length.saturating_mul(size_of::<T>());
        let out_of_memory = OpError::OutOfMemory { op, bytes };
        if bytes == 0 {
            return Ok(Buffer { start: NonNull::dangling(), length: 0 });
        }
        let Some(layout) = layout::<T>(length) else { return Err(out_of_memory) };
        // SAFETY: the layout's size is not 0.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        match NonNull::new(start.cast()) {
            Some(start) => {
                advise_huge(start.cast(), bytes);
                Ok(Buffer { start, length })
            }
            None => Err(out_of_memory),
        }
    }
}

/// Bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;

/// The allocation of `length` elements: on cache lines, large ones on huge pages.
fn layout<T>(length: usize) -> Option<Layout> {
    let layout = Layout::array::<T>(length).ok()?;
    layout.align_to(if layout.size() >= HUGE_PAGE { HUGE_PAGE } else { 64 }).ok()
}

/// Asks for huge pages, which make streaming through weights up to a third faster.
fn advise_huge(start: NonNull<u8>, bytes: usize) {
    let whole = bytes / HUGE_PAGE * HUGE_PAGE;
    if whole > 0 {
        // SAFETY: the range is owned by the caller and was just allocated; the advice changes how
        // it is mapped, not what it holds. A system that declines costs speed only.
        let _ = unsafe {
            rustix::mm::madvise(start.as_ptr().cast(), whole, rustix::mm::Advice::LinuxHugepage)
        };
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        if let (Some(layout), 1..) = (layout::<T>(self.length), self.length) {
            // SAFETY: `zeroed` allocated with this layout; elements are plain numbers.
            unsafe { std::alloc::dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

impl<T: Plain> std::ops::Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `zeroed` allocated and initialized `length` elements, and zero bytes are a `T`
        // (`Plain`).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl<T: Plain> std::ops::DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

/// A pointer that a parallel region shares among its members, who write disjoint parts.
pub(crate) struct Shared<T>(pub *mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: a `Shared` is only made for a region whose members write disjoint elements, each region
// says which; the pointee outlives the region.
unsafe impl<T> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Send for Shared<T> {}

impl<T> Shared<T> {
    /// The pointer; a method, so that closures capture the whole wrapper.
    pub fn get(self) -> *mut T {
        self.0
    }
}
