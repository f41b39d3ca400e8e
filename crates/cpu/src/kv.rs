//! The paged KV pool, in the order in which attention reads it.
//!
//! Per layer, page and head: keys as `[element][token]`, so that the scores of sixteen tokens come
//! from one vector a key element without any reduction across lanes; values as
//! `[token][element]`.

use crate::OpError;
use crate::buffer::{Buffer, Plain};
use crate::simd::Simd;
use laneway_execution::{PAGE_TOKENS, PageId};
use laneway_numerics::{KvDtype, bf16};
use laneway_ops::KvSpec;

/// A stored element.
pub(crate) trait Element: Plain + Default + Send + Sync + 'static {
    /// Widens sixteen elements.
    ///
    /// # Safety
    /// `S` is available, `p` valid for sixteen elements.
    unsafe fn load<S: Simd>(p: *const Self) -> S::F;

    /// Rounds sixteen elements.
    ///
    /// # Safety
    /// `S` is available, `p` valid for sixteen elements.
    unsafe fn store<S: Simd>(p: *mut Self, v: S::F);
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Self) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { S::load(p) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut Self, v: S::F) {
        // SAFETY: the caller's promise.
        unsafe { S::store(p, v) }
    }
}

/// Bits of an f16.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub(crate) struct Half(u16);
impl Plain for Half {}

impl Element for Half {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Self) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { S::load_f16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut Self, v: S::F) {
        // SAFETY: the caller's promise.
        unsafe { S::store_f16(p.cast(), v) }
    }
}

/// Bits of a bf16.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub(crate) struct Brain(u16);
impl Plain for Brain {}

impl Element for Brain {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Self) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { S::load_bf16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut Self, v: S::F) {
        let mut wide = [0.0f32; 16];
        // SAFETY: the caller's promise; the array has sixteen elements.
        unsafe {
            S::store(wide.as_mut_ptr(), v);
            p.cast::<[u16; 16]>().write_unaligned(wide.map(|v| bf16::from_f32(v).to_bits()));
        }
    }
}

/// Keys and values of one element type.
pub(crate) struct Pages<E> {
    pub keys: Buffer<E>,
    pub values: Buffer<E>,
}

/// The storage of a pool, by dtype.
pub(crate) enum Store {
    F32(Pages<f32>),
    F16(Pages<Half>),
    Bf16(Pages<Brain>),
}

/// A paged KV pool.
pub struct KvPool {
    pub(crate) spec: KvSpec,
    pub(crate) store: Store,
}

impl KvPool {
    pub(crate) fn new(spec: &KvSpec) -> Result<Self, OpError> {
        const OP: &str = "new_kv_pool";
        if spec.head_dim == 0 || !spec.head_dim.is_multiple_of(16) {
            let detail = format!("heads of {}, expected a multiple of 16", spec.head_dim);
            return Err(OpError::Shape { op: OP, detail });
        }
        let elements = [spec.layers, spec.pages, spec.kv_heads, PAGE_TOKENS, spec.head_dim]
            .into_iter()
            .fold(1usize, usize::saturating_mul);
        fn pages<E: Plain>(elements: usize) -> Result<Pages<E>, OpError> {
            let keys = Buffer::zeroed(OP, elements)?;
            Ok(Pages { keys, values: Buffer::zeroed(OP, elements)? })
        }
        let store = match spec.dtype {
            KvDtype::F32 => Store::F32(pages(elements)?),
            KvDtype::F16 => Store::F16(pages(elements)?),
            KvDtype::Bf16 => Store::Bf16(pages(elements)?),
        };
        Ok(KvPool { spec: *spec, store })
    }

    /// Copies the first `tokens` tokens of a page.
    pub(crate) fn copy(&mut self, from: PageId, to: PageId, tokens: usize) {
        let spec = self.spec;
        match &mut self.store {
            Store::F32(pages) => copy(pages, &spec, from, to, tokens),
            Store::F16(pages) => copy(pages, &spec, from, to, tokens),
            Store::Bf16(pages) => copy(pages, &spec, from, to, tokens),
        }
    }
}

/// First element of a head in a page.
pub(crate) fn base(spec: &KvSpec, layer: usize, page: PageId, head: usize) -> usize {
    ((layer * spec.pages + page.0 as usize) * spec.kv_heads + head) * PAGE_TOKENS * spec.head_dim
}

fn copy<E: Plain>(pages: &mut Pages<E>, spec: &KvSpec, from: PageId, to: PageId, tokens: usize) {
    for layer in 0..spec.layers {
        for head in 0..spec.kv_heads {
            let (source, target) = (base(spec, layer, from, head), base(spec, layer, to, head));
            for element in 0..spec.head_dim {
                let row = element * PAGE_TOKENS;
                let range = source + row..source + row + tokens;
                pages.keys.copy_within(range, target + row);
            }
            let range = source..source + tokens * spec.head_dim;
            pages.values.copy_within(range, target);
        }
    }
}
