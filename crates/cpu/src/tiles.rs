//! Products of several rows with a panel, on the tile multipliers of AMX.
//!
//! Only the integer sums of a block are formed differently from [`crate::matmul`]. They are exact
//! either way, and what follows is done per row in the same operations and the same order, so the
//! results are equal bit for bit.
//!
//! One instruction multiplies up to sixteen rows by a panel's sixteen outputs over 64 bytes of
//! input: for four-bit weights both planes of a block at once, against the codes times sixteen and
//! the codes themselves; otherwise one plane of a block. Stable Rust has no intrinsics for tiles,
//! hence the assembly.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.

use crate::isa::Kernel;
use crate::matmul::{Sums, Weights, factor};
use crate::packed::BlockLayout;
use crate::quantize::{BLOCK, PLANE_BITS, View};
use crate::simd::{Avx512, LANES, Simd};
use std::arch::asm;
use std::arch::x86_64::{
    __cpuid_count, __m512i, _mm512_load_si512, _mm512_set1_epi8, _mm512_store_si512,
    _mm512_sub_epi8,
};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::OnceLock;

/// Rows of one tile.
const TILE_ROWS: usize = 16;

/// Blocks whose weights are unpacked at a time: 8 KiB, which the first-level cache holds beside
/// the activations.
const STRETCH: usize = 8;

/// How far ahead packed weights are asked for: about a stretch, for with few rows their reading is
/// what takes the time.
const AHEAD: usize = 4096;

/// Fewer rows are quicker with vectors: unpacking weights for the tiles would cost more than it
/// saves.
pub(crate) const LEAST_ROWS: usize = 4;

/// True if the machine has 8-bit tile multipliers and the system lets this process use them.
pub(crate) fn is_available() -> bool {
    /// `ARCH_REQ_XCOMP_PERM` and `XFEATURE_XTILEDATA` of Linux's `arch/x86/include/uapi/asm`.
    const REQUEST: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    /// `CPUID.7.0:EDX`: AMX-TILE and AMX-INT8.
    const FEATURES: u32 = 1 << 24 | 1 << 25;
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        let has = is_x86_feature_detected!("avx512f")
            && __cpuid_count(7, 0).edx & FEATURES == FEATURES;
        // SAFETY: the call takes two numbers and changes nothing but this process's permission to
        // use tiles, which the kernel refuses where it cannot save their state.
        has && unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) } == 0
    })
}

/// The sums of one panel of a block format for several rows.
pub(crate) struct Tiles<'a> {
    pub weights: Weights,
    pub x: View,
    /// First row, and how many: at most as many as `sums` has.
    pub first: usize,
    pub count: usize,
    pub sums: &'a mut Sums,
}

/// Bytes of a block's unpacked weights: in each, sixteen outputs' codes for 32 inputs, perhaps
/// twice.
const UNPACKED: usize = 2 * BLOCK * LANES;

/// Unpacked weights of a stretch.
#[repr(C, align(64))]
struct Codes([[MaybeUninit<u8>; UNPACKED]; STRETCH]);

/// Integer sums of the rows of one part of a block; with separate planes, one set for each.
#[repr(C, align(64))]
struct Dots([[[MaybeUninit<i32>; LANES]; TILE_ROWS]; 2]);

/// How blocks are cut into products.
#[derive(Clone, Copy)]
struct Cut {
    /// Both planes are one product.
    fused: bool,
    /// Planes that are a product each.
    products: usize,
    /// Inputs of a product: those that share a scale.
    inputs: usize,
    /// Weights are signed bytes, the offset taken out; those of formats with a minimum are not.
    signed: bool,
}

impl Cut {
    const fn of(layout: BlockLayout, planes: usize) -> Self {
        let fused = layout.nibbles && planes == 2;
        let products = if fused { 1 } else { planes };
        Cut { fused, products, inputs: layout.block, signed: !layout.minimum }
    }

    /// Bytes of a row of activations in one product.
    const fn depth(self) -> usize {
        if self.fused { 2 * BLOCK } else { self.inputs }
    }
}

impl Kernel for Tiles<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let blocks = self.weights.cols / BLOCK;
        let cut = Cut::of(self.weights.layout, self.x.planes);
        let mut codes = Codes([[MaybeUninit::uninit(); UNPACKED]; STRETCH]);
        self.sums[..self.count].fill([0.0; LANES]);
        let mut shape = 0;
        for start in (0..blocks).step_by(STRETCH) {
            let stretch = start..blocks.min(start + STRETCH);
            // SAFETY: the dispatching caller promises tiles and AVX-512; blocks and rows exist.
            unsafe {
                unpack(self.weights, cut, stretch.clone(), &mut codes);
                for tile in (0..self.count).step_by(TILE_ROWS) {
                    let rows = TILE_ROWS.min(self.count - tile);
                    if shape != rows {
                        configure(rows, cut.depth());
                        shape = rows;
                    }
                    let sums = &mut self.sums[tile..tile + rows];
                    let (weights, x, first) = (self.weights, self.x, self.first + tile);
                    add(weights, cut, x, first, stretch.clone(), &codes, sums);
                }
            }
        }
        // SAFETY: tiles are available; none is in use after this. Released ones need not be saved
        // when the thread is switched.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }
}

/// Shapes the tiles: 0 and 1 take sums, 2 and 3 activations, 4 weights for `depth` bytes of a row.
///
/// # Safety
/// Tiles are available.
#[inline(always)]
unsafe fn configure(rows: usize, depth: usize) {
    #[repr(C, align(64))]
    struct Config {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }
    let (rows, depth, wide) = (rows as u8, depth as u16, 4 * LANES as u16);
    let mut config = Config {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [0; 16],
        rows: [0; 16],
    };
    config.row_bytes[..5].copy_from_slice(&[wide, wide, depth, depth, wide]);
    config.rows[..5].copy_from_slice(&[rows, rows, rows, rows, depth as u8 / 4]);
    let config = &raw const config;
    // SAFETY: palette 1 has eight tiles of up to 16 rows of 64 bytes; all shapes are within.
    unsafe { asm!("ldtilecfg [{}]", in(reg) config, options(readonly, nostack, preserves_flags)) };
}

/// Unpacks the weights of some blocks to bytes.
///
/// # Safety
/// AVX-512 is available; the blocks, at most [`STRETCH`], exist.
#[inline(always)]
unsafe fn unpack(weights: Weights, cut: Cut, blocks: Range<usize>, out: &mut Codes) {
    type S = Avx512;
    let BlockLayout { nibbles, offset, .. } = weights.layout;
    let block_bytes = if nibbles { BLOCK * LANES / 2 } else { BLOCK * LANES };
    // SAFETY: the caller's promise; a block has room for its codes, once or twice.
    unsafe {
        // Bytes wrap, so that 128 is -128, and the difference is the signed code.
        let offset16 = _mm512_set1_epi8((offset << PLANE_BITS) as i8);
        let offset = _mm512_set1_epi8(offset as i8);
        for (block, out) in blocks.zip(&mut out.0) {
            let out = out.as_mut_ptr().cast::<__m512i>();
            let codes = weights.codes.add(block * block_bytes);
            for line in (0..block_bytes).step_by(64) {
                S::prefetch(codes.wrapping_add(AHEAD + line));
            }
            for i in 0..block_bytes / 64 {
                let codes = S::codes(codes.add(i * 64));
                if !nibbles {
                    _mm512_store_si512(out.add(i), _mm512_sub_epi8(codes, offset));
                    continue;
                }
                let mut out = out.add(2 * i);
                if cut.fused {
                    _mm512_store_si512(out, _mm512_sub_epi8(S::low16(codes), offset16));
                    _mm512_store_si512(out.add(1), _mm512_sub_epi8(S::high16(codes), offset16));
                    out = out.add(BLOCK / 4);
                }
                _mm512_store_si512(out, _mm512_sub_epi8(S::low(codes), offset));
                _mm512_store_si512(out.add(1), _mm512_sub_epi8(S::high(codes), offset));
            }
        }
    }
}

/// Adds the products of a stretch of blocks to the sums of a tile's rows.
///
/// # Safety
/// Tiles are configured for the rows and the cut; blocks and rows exist.
#[inline(always)]
unsafe fn add(
    weights: Weights,
    cut: Cut,
    x: View,
    first: usize,
    blocks: Range<usize>,
    codes: &Codes,
    sums: &mut [[f32; LANES]],
) {
    let minimum = weights.layout.minimum;
    let parts = BLOCK / cut.inputs;
    // The products of a part are formed while those of the one before it are scaled.
    let mut dots = [const { Dots([[[MaybeUninit::uninit(); LANES]; TILE_ROWS]; 2]) }; 2];
    let count = blocks.len() * parts;
    // SAFETY: the caller's promise; a block has `parts` parts.
    unsafe {
        for part in 0..=count {
            if part < count {
                let (block, within) = (part / parts, part % parts * cut.inputs);
                let at = (blocks.start + block) * x.capacity + first;
                let activations = x.codes.add(at * x.planes * BLOCK + within).cast_const();
                let codes = codes.0[block].as_ptr().add(within * LANES).cast();
                multiply(cut, activations, x.planes, codes, &mut dots[part % 2]);
                // A row's next block lies as many rows away as there are.
                let next = activations.wrapping_add(x.capacity * x.planes * BLOCK);
                for line in (0..sums.len() * x.planes * BLOCK).step_by(64) {
                    Avx512::prefetch(next.wrapping_add(line).cast());
                }
            }
            let Some(part) = part.checked_sub(1) else { continue };
            let at = (blocks.start + part / parts) * x.capacity + first;
            let index = (blocks.start * parts + part) * if minimum { 2 * LANES } else { LANES };
            let (dots, scales) = (&dots[part % 2], x.scales.add(at));
            match (cut.products, minimum) {
                (1, false) => scale::<1, false>(weights, index, dots, scales, scales, sums),
                (1, true) => scale::<1, true>(weights, index, dots, scales, x.totals.add(at), sums),
                (_, false) => scale::<2, false>(weights, index, dots, scales, scales, sums),
                (_, true) => scale::<2, true>(weights, index, dots, scales, x.totals.add(at), sums),
            }
        }
    }
}

/// Scales the integer sums of one part of a block, in `P` sets, and adds them to the rows' sums.
///
/// # Safety
/// AVX-512 is available; the rows' integer sums are there, their scales and totals, and the
/// panel's factors from `index`.
#[inline(always)]
unsafe fn scale<const P: usize, const MINIMUM: bool>(
    weights: Weights,
    index: usize,
    dots: &Dots,
    scales: *const f32,
    totals: *const f32,
    sums: &mut [[f32; LANES]],
) {
    type S = Avx512;
    let [dots, low] = dots.0.each_ref().map(|plane| plane.as_ptr());
    // SAFETY: the caller's promise.
    unsafe {
        let factors = factor::<S>(weights, index);
        let least = if MINIMUM { factor::<S>(weights, index + LANES) } else { factors };
        for (r, sum) in sums.iter_mut().enumerate() {
            let mut dot = _mm512_load_si512(dots.add(r).cast());
            if P == 2 {
                let low = _mm512_load_si512(low.add(r).cast());
                dot = S::int_add(S::shift_left::<PLANE_BITS>(dot), low);
            }
            let step = S::mul(factors, S::splat(*scales.add(r)));
            let mut value = S::fma(S::int_to_f(dot), step, S::load(sum.as_ptr()));
            if MINIMUM {
                value = S::fma(least, S::splat(*totals.add(r)), value);
            }
            S::store(sum.as_mut_ptr(), value);
        }
    }
}

/// Multiplies the activations of one part of a block by its weights, with the given instruction.
macro_rules! products {
    ($dot:literal, $products:expr, $x:expr, $row:expr, $codes:expr, $dots:expr) => {
        if $products == 1 {
            asm!(
                "tileloadd tmm4, [{codes} + {vector}]",
                "tileloadd tmm2, [{x} + {row}]",
                "tilezero tmm0",
                concat!($dot, " tmm0, tmm2, tmm4"),
                "tilestored [{dots} + {vector}], tmm0",
                codes = in(reg) $codes,
                x = in(reg) $x,
                dots = in(reg) $dots,
                vector = in(reg) 4 * LANES,
                row = in(reg) $row,
                out("tmm0") _, out("tmm2") _, out("tmm4") _,
                options(nostack, preserves_flags)
            )
        } else {
            asm!(
                "tileloadd tmm4, [{codes} + {vector}]",
                "tileloadd tmm2, [{x} + {row}]",
                "tileloadd tmm3, [{x} + {row} + {plane}]",
                "tilezero tmm0",
                concat!($dot, " tmm0, tmm2, tmm4"),
                "tilezero tmm1",
                concat!($dot, " tmm1, tmm3, tmm4"),
                "tilestored [{dots} + {vector}], tmm0",
                "tilestored [{dots} + {vector} + {set}], tmm1",
                codes = in(reg) $codes,
                x = in(reg) $x,
                dots = in(reg) $dots,
                vector = in(reg) 4 * LANES,
                row = in(reg) $row,
                plane = const BLOCK,
                set = const 4 * LANES * TILE_ROWS,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _,
                options(nostack, preserves_flags)
            )
        }
    };
}

/// Forms the integer sums of one part of a block.
///
/// # Safety
/// Tiles are configured; the pointers reach as far as the configured shapes.
#[inline(always)]
unsafe fn multiply(
    cut: Cut,
    activations: *const i8,
    planes: usize,
    codes: *const u8,
    dots: &mut Dots,
) {
    let (row, dots) = (planes * BLOCK, dots.0.as_mut_ptr());
    // SAFETY: the caller's promise. Rows of activations are all planes of a block apart, those of
    // weights and sums a vector; `dots` has sixteen rows for each product.
    unsafe {
        if cut.signed {
            products!("tdpbssd", cut.products, activations, row, codes, dots);
        } else {
            products!("tdpbsud", cut.products, activations, row, codes, dots);
        }
    }
}
