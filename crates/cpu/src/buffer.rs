//! Cache-line-aligned arrays.

use crate::OpError;
use rustix::mm::{MapFlags, ProtFlags};
use std::alloc::Layout;
use std::ptr::NonNull;

/// Plain numbers: any bytes are valid, and zero bytes mean zero.
pub(crate) trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for i8 {}
impl Plain for u16 {}
impl Plain for i32 {}
impl Plain for f32 {}

/// A zero-initialized array whose first element lies on a cache line, that of a large one on a
/// huge page.
///
/// The system hands out zero pages on first use, so a large pool costs nothing until it fills.
pub(crate) struct Buffer<T> {
    start: NonNull<T>,
    length: usize,
    source: Source,
}

/// Where an array's memory comes from.
enum Source {
    /// Nothing to give back: the array is empty.
    Nowhere,
    /// The allocator, with this layout.
    Allocator(Layout),
    /// A mapping of its own, for the allocator would write the zeros of an aligned array.
    Mapping { start: NonNull<std::ffi::c_void>, bytes: usize },
}

// SAFETY: a buffer owns its elements, like a `Vec` of numbers.
unsafe impl<T: Plain> Send for Buffer<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Buffer<T> {}

impl<T: Plain> Buffer<T> {
    /// `length` zeros.
    pub fn zeroed(op: &'static str, length: usize) -> Result<Self, OpError> {
        let bytes = length.saturating_mul(size_of::<T>());
        let out_of_memory = || OpError::OutOfMemory { op, bytes };
        if bytes == 0 {
            return Ok(Buffer { start: NonNull::dangling(), length: 0, source: Source::Nowhere });
        }
        if bytes < HUGE_PAGE {
            let layout = Layout::array::<T>(length).and_then(|layout| layout.align_to(CACHE_LINE));
            let layout = layout.map_err(|_| out_of_memory())?;
            // SAFETY: the layout's size is not 0.
            let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) });
            let start = start.ok_or_else(out_of_memory)?.cast();
            return Ok(Buffer { start, length, source: Source::Allocator(layout) });
        }
        // As much more as it may take to begin on a huge page.
        let mapped = bytes.checked_add(HUGE_PAGE).ok_or_else(out_of_memory)?;
        // SAFETY: a new private mapping of no file, at an address of the system's choice.
        let map = unsafe {
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), mapped, access, flags)
        };
        let map = map.ok().and_then(NonNull::new).ok_or_else(out_of_memory)?;
        let skipped = map.as_ptr().align_offset(HUGE_PAGE).min(HUGE_PAGE);
        // SAFETY: no more than a huge page is skipped, which the mapping has beyond the array.
        let start = unsafe { map.byte_add(skipped) };
        #[cfg(target_os = "linux")]
        advise_huge(start.cast(), bytes);
        let source = Source::Mapping { start: map, bytes: mapped };
        Ok(Buffer { start: start.cast(), length, source })
    }
}

const CACHE_LINE: usize = 64;

/// Bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;

/// Asks for huge pages, which make streaming through weights up to a third faster.
#[cfg(target_os = "linux")]
fn advise_huge(start: NonNull<u8>, bytes: usize) {
    let whole = bytes / HUGE_PAGE * HUGE_PAGE;
    // SAFETY: the range is owned by the caller and was just mapped; the advice changes how it is
    // mapped, not what it holds. A system that declines costs speed only.
    let _ = unsafe {
        rustix::mm::madvise(start.as_ptr().cast(), whole, rustix::mm::Advice::LinuxHugepage)
    };
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        match self.source {
            Source::Nowhere => {}
            // SAFETY: `zeroed` allocated with this layout; elements are plain numbers.
            Source::Allocator(layout) => unsafe {
                std::alloc::dealloc(self.start.as_ptr().cast(), layout);
            },
            Source::Mapping { start, bytes } => {
                // SAFETY: `zeroed` mapped this range, and nothing borrows from it any more.
                let unmapped = unsafe { rustix::mm::munmap(start.as_ptr(), bytes) };
                debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped");
            }
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
