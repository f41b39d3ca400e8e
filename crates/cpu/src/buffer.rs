//! Cache-line-aligned arrays.

use crate::OpError;
#[cfg(target_os = "linux")]
use rustix::mm::Advice;
use rustix::mm::{MapFlags, ProtFlags};
use std::alloc::Layout;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

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
    /// Nowhere: the array is empty.
    Nothing,
    /// The allocator, with this layout.
    Allocator(Layout),
    /// A mapping, which ends with its last array. The allocator would write the zeros of aligned
    /// arrays, and scatter them over small pages.
    Mapping { _keep: Arc<Mapping> },
}

// SAFETY: a buffer owns its elements, like a `Vec` of numbers.
unsafe impl<T: Plain> Send for Buffer<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Buffer<T> {}

const CACHE_LINE: usize = 64;

/// Bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;

/// Smaller arrays come from the allocator.
const LEAST_MAPPED: usize = 16 << 10;

/// Bytes of a mapping that arrays below a huge page share.
const SHARED_MAPPING: usize = 16 << 20;

/// The mapping that the next such array is taken from, and how much of it is taken.
static CURRENT: Mutex<Option<(Arc<Mapping>, usize)>> = Mutex::new(None);

impl<T: Plain> Buffer<T> {
    /// `length` zeros.
    pub fn zeroed(op: &'static str, length: usize) -> Result<Self, OpError> {
        let bytes = length.saturating_mul(size_of::<T>());
        if bytes == 0 {
            return Ok(Buffer { start: NonNull::dangling(), length: 0, source: Source::Nothing });
        }
        let (start, source) = match bytes {
            ..LEAST_MAPPED => allocate::<T>(length),
            _ => map(bytes),
        }
        .ok_or(OpError::OutOfMemory { op, bytes })?;
        Ok(Buffer { start: start.cast(), length, source })
    }
}

/// A small array, not empty, from the allocator.
fn allocate<T>(length: usize) -> Option<(NonNull<u8>, Source)> {
    let layout = Layout::array::<T>(length).and_then(|layout| layout.align_to(CACHE_LINE)).ok()?;
    // SAFETY: the layout's size is not 0.
    let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
    Some((start, Source::Allocator(layout)))
}

/// A large array, from a mapping of its own or from one that it shares.
fn map(bytes: usize) -> Option<(NonNull<u8>, Source)> {
    if bytes >= HUGE_PAGE {
        let mapping = Arc::new(Mapping::new(bytes)?);
        return Some((mapping.start, Source::Mapping { _keep: mapping }));
    }
    // Whoever panicked with the lock left a whole value.
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let (mapping, taken) = match current.take() {
        Some((mapping, taken)) if taken + bytes <= SHARED_MAPPING => (mapping, taken),
        _ => (Arc::new(Mapping::new(SHARED_MAPPING)?), 0),
    };
    // SAFETY: the mapping has `bytes` more than are taken; nobody else is given these.
    let start = unsafe { mapping.start.add(taken) };
    *current = Some((Arc::clone(&mapping), (taken + bytes).next_multiple_of(CACHE_LINE)));
    Some((start, Source::Mapping { _keep: mapping }))
}

/// Zeros on huge pages, where the system has them: streaming through weights is up to a third
/// faster on these.
struct Mapping {
    /// The first huge page.
    start: NonNull<u8>,
    /// What the system gave.
    whole: (NonNull<c_void>, usize),
}

// SAFETY: a mapping is memory of the process, used through the arrays that were given parts of it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// At least `bytes`.
    fn new(bytes: usize) -> Option<Self> {
        // As much more as it may take to begin and to end on a huge page.
        let whole = bytes.checked_add(2 * HUGE_PAGE)?;
        // SAFETY: a new private mapping of no file, at an address of the system's choice.
        let map = unsafe {
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), whole, access, flags)
        };
        let map = NonNull::new(map.ok()?)?;
        let skipped = map.as_ptr().align_offset(HUGE_PAGE).min(HUGE_PAGE);
        // SAFETY: no more than a huge page is skipped, and the mapping has two more than `bytes`.
        let start = unsafe { map.byte_add(skipped) };
        #[cfg(target_os = "linux")]
        {
            let (pages, advice) = (bytes.next_multiple_of(HUGE_PAGE), Advice::LinuxHugepage);
            // SAFETY: the range lies in the mapping; the advice changes how it is mapped, not what
            // it holds. A system that declines costs speed only.
            let _ = unsafe { rustix::mm::madvise(start.as_ptr(), pages, advice) };
        }
        Some(Mapping { start: start.cast(), whole: (map, whole) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (start, bytes) = self.whole;
        // SAFETY: `new` mapped this range; the arrays that were given parts of it are gone.
        let unmapped = unsafe { rustix::mm::munmap(start.as_ptr(), bytes) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped");
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        if let Source::Allocator(layout) = self.source {
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
