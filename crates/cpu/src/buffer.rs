//! Cache-line-aligned arrays.

use crate::OpError;

/// One cache line; the unit of allocation.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "read through the slice")] [u8; 64]);

/// Plain numbers: any bytes are valid, and zero bytes mean zero.
pub(crate) trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for i8 {}
impl Plain for u16 {}
impl Plain for i32 {}
impl Plain for f32 {}

/// A zero-initialized array whose first element lies on a cache line.
pub(crate) struct Buffer<T> {
    lines: Vec<Line>,
    length: usize,
    element: std::marker::PhantomData<T>,
}

impl<T: Plain> Buffer<T> {
    /// `length` zeros.
    pub fn zeroed(op: &'static str, length: usize) -> Result<Self, OpError> {
        let bytes = length.saturating_mul(size_of::<T>());
        let count = bytes.div_ceil(64);
        let mut lines = Vec::new();
        lines.try_reserve_exact(count).map_err(|_| OpError::OutOfMemory { op, bytes })?;
        lines.resize(count, Line([0; 64]));
        Ok(Buffer { lines, length, element: std::marker::PhantomData })
    }
}

impl<T: Plain> std::ops::Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the lines hold at least `length` elements of `T` (see `zeroed`), are aligned for
        // it, are initialized, and every byte pattern is a `T` (`Plain`).
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.length) }
    }
}

impl<T: Plain> std::ops::DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.length) }
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
