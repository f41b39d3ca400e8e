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
pub(crate) const LEAST_ROWS: usize = 6;

/// True if the machine has 8-bit tile multipliers and the system lets this process use them.
pub(crate) fn is_available() -> bool {
    /// `ARCH_REQ_XCOMP_PERM` and `XFEATURE_XTILEDATA` of Linux's `arch/x86/include/uapi/asm`.
    const REQUEST: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    /// `CPUID.7.0:EDX`: AMX-TILE and AMX-INT8.
    const FEATURES: u32 = 1 << 24 | 1 << 25;
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        let has =
            is_x86_feature_detected!("avx512f") && __cpuid_count(7, 0).edx & FEATURES == FEATURES;
        // SAFETY: the call takes two numbers and changes nothing but this process's permission to
        // use tiles, which the kernel refuses where it cannot save their state.
        has && unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) } == 0
    })
}

/// The tile configuration of a thread; releases the tiles when dropped, so that a thread without
/// products has no tiles to save when it is switched.
#[derive(Default)]
pub(crate) struct Configuration {
    /// Rows, and bytes of a row of activations; 0 rows: tiles are not in use.
    shape: (usize, usize),
}

impl Drop for Configuration {
    fn drop(&mut self) {
        if self.shape.0 > 0 {
            // SAFETY: tiles are available, for they were configured; none is in use.
            unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
        }
    }
}

/// The sums of `N` panels of a block format, one or two, for several rows. Two share the loading of
/// activations, and one's products are formed while the other's are scaled.
pub(crate) struct Tiles<'a, const N: usize> {
    pub configuration: &'a mut Configuration,
    /// Panels of one layout and width.
    pub weights: [Weights; N],
    pub x: View,
    /// First row, and how many: at most as many as `sums` has.
    pub first: usize,
    pub count: usize,
    pub sums: [&'a mut Sums; N],
}

/// Bytes of a block's unpacked weights: in each, sixteen outputs' codes for 32 inputs, perhaps
/// twice.
const UNPACKED: usize = 2 * BLOCK * LANES;

/// Unpacked weights of a stretch.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Codes([[MaybeUninit<u8>; UNPACKED]; STRETCH]);

/// Integer sums of the rows of one part of a block; with separate planes, one set for each.
#[derive(Clone, Copy)]
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

impl<const N: usize> Kernel for Tiles<'_, N> {
    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let [Weights { layout, cols, .. }, ..] = self.weights[..] else { return };
        let blocks = cols / BLOCK;
        let cut = Cut::of(layout, self.x.planes);
        let mut codes = [const { Codes([[MaybeUninit::uninit(); UNPACKED]; STRETCH]) }; N];
        for sums in &mut self.sums {
            sums[..self.count].fill([0.0; LANES]);
        }
        for start in (0..blocks).step_by(STRETCH) {
            let stretch = start..blocks.min(start + STRETCH);
            // SAFETY: the dispatching caller promises tiles and AVX-512; blocks and rows exist.
            unsafe {
                for n in 0..N {
                    unpack(self.weights[n], cut, stretch.clone(), &mut codes[n]);
                }
                for first in (0..self.count).step_by(TILE_ROWS) {
                    let rows = TILE_ROWS.min(self.count - first);
                    let shape = (rows, cut.depth());
                    if self.configuration.shape != shape {
                        configure(rows, cut.depth());
                        self.configuration.shape = shape;
                    }
                    self.add(cut, first..first + rows, stretch.clone(), &codes);
                }
            }
        }
    }
}

impl<const N: usize> Tiles<'_, N> {
    /// Adds the products of a stretch of blocks to the sums of some rows, at most a tile's.
    ///
    /// # Safety
    /// Tiles are configured for the rows and the cut; blocks and rows exist.
    #[inline(always)]
    unsafe fn add(
        &mut self,
        cut: Cut,
        rows: Range<usize>,
        blocks: Range<usize>,
        codes: &[Codes; N],
    ) {
        let (x, minimum) = (self.x, self.weights[0].layout.minimum);
        let (first, row_bytes) = (self.first + rows.start, x.planes * BLOCK);
        // A block is one part or two; a shift finds a part's block where a division would be slow.
        let halved = u32::from(cut.inputs < BLOCK);
        let count = blocks.len() << halved;
        let mut dots = [const { Dots([[[MaybeUninit::uninit(); LANES]; TILE_ROWS]; 2]) }; N];
        // SAFETY: the caller's promise; the stretch has `count` parts.
        unsafe {
            let within = |part: usize| (part & halved as usize) * cut.inputs;
            let at = |part: usize| (blocks.start + (part >> halved)) * x.capacity + first;
            let activations =
                |part: usize| x.codes.add(at(part) * row_bytes + within(part)).cast_const();
            let code = |n: usize, part: usize| {
                codes[n].0[part >> halved].as_ptr().add(within(part) * LANES).cast::<u8>()
            };
            inputs(cut, activations(0), row_bytes);
            for n in 0..N {
                form(cut, n, code(n, 0));
            }
            for part in 0..count {
                let index = (blocks.start << halved) + part;
                let index = index * if minimum { 2 * LANES } else { LANES };
                for n in 0..N {
                    take(cut, n, &mut dots[n]);
                    // The next part's products are formed while this one's are scaled.
                    if part + 1 < count {
                        if n == 0 {
                            inputs(cut, activations(part + 1), row_bytes);
                        }
                        form(cut, n, code(n, part + 1));
                        if n == 0 {
                            let next =
                                x.codes.wrapping_add((at(part + 1) + x.capacity) * row_bytes);
                            for line in (0..rows.len() * row_bytes).step_by(64) {
                                Avx512::prefetch(next.wrapping_add(line).cast());
                            }
                        }
                    }
                    let factors = Factors {
                        weights: self.weights[n],
                        index,
                        scales: x.scales.add(at(part)),
                        totals: x.totals.add(at(part)),
                    };
                    let sums = &mut self.sums[n][rows.clone()];
                    match (cut.products, minimum) {
                        (1, false) => scale::<1, false>(factors, &dots[n], sums),
                        (1, true) => scale::<1, true>(factors, &dots[n], sums),
                        (_, false) => scale::<2, false>(factors, &dots[n], sums),
                        (_, true) => scale::<2, true>(factors, &dots[n], sums),
                    }
                }
            }
        }
    }
}

/// Shapes the tiles for `depth` bytes of a row: 0 to 3 take sums, two for each panel, 4 and 5 the
/// panels' weights, 6 and 7 activations, by plane.
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
    let mut config =
        Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    config.row_bytes[..8].copy_from_slice(&[wide, wide, wide, wide, wide, wide, depth, depth]);
    let four = depth as u8 / 4;
    config.rows[..8].copy_from_slice(&[rows, rows, rows, rows, four, four, rows, rows]);
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

/// What the integer sums of one part of a block are multiplied by.
#[derive(Clone, Copy)]
struct Factors {
    weights: Weights,
    /// The part's first factor in the panel.
    index: usize,
    /// Scale and total of each row.
    scales: *const f32,
    totals: *const f32,
}

/// Scales the integer sums of one part of a block, in `P` sets, and adds them to the rows' sums.
///
/// # Safety
/// AVX-512 is available; the rows' integer sums and all factors are there.
#[inline(always)]
unsafe fn scale<const P: usize, const MINIMUM: bool>(
    factors: Factors,
    dots: &Dots,
    sums: &mut [[f32; LANES]],
) {
    // SAFETY: the caller's promise.
    unsafe {
        // The length is worth knowing: a whole tile's loop is unrolled.
        match <&mut [[f32; LANES]; TILE_ROWS]>::try_from(&mut *sums) {
            Ok(all) => scale_rows::<P, MINIMUM>(factors, dots, all),
            Err(_) => scale_rows::<P, MINIMUM>(factors, dots, sums),
        }
    }
}

/// [`scale`] for a number of rows that the compiler may know.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn scale_rows<const P: usize, const MINIMUM: bool>(
    Factors { weights, index, scales, totals }: Factors,
    dots: &Dots,
    sums: &mut [[f32; LANES]],
) {
    type S = Avx512;
    let [dots, low] = dots.0.each_ref().map(|set| set.as_ptr());
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

/// Assembly for one panel's tiles. Nothing here is compiled with the feature that would let the
/// compiler use tiles itself, so they keep their contents from one block of assembly to the next.
macro_rules! panel_tiles {
    // Loads weights and multiplies the activations by them.
    (form $dot:literal, $weights:tt, $sum:tt, $codes:expr) => {
        asm!(
            concat!("tileloadd ", $weights, ", [{codes} + {vector}]"),
            concat!("tilezero ", $sum),
            concat!($dot, " ", $sum, ", tmm6, ", $weights),
            codes = in(reg) $codes,
            vector = in(reg) 4 * LANES,
            out($weights) _, out($sum) _,
            options(readonly, nostack, preserves_flags)
        )
    };
    // The same for the second plane, weights loaded.
    (form_low $dot:literal, $weights:tt, $sum:tt) => {
        asm!(
            concat!("tilezero ", $sum),
            concat!($dot, " ", $sum, ", tmm7, ", $weights),
            out($sum) _,
            options(nomem, nostack, preserves_flags)
        )
    };
    // Stores sums.
    (take $sum:literal, $out:expr) => {
        asm!(
            concat!("tilestored [{out} + {vector}], ", $sum),
            out = in(reg) $out,
            vector = in(reg) 4 * LANES,
            options(nostack, preserves_flags)
        )
    };
}

/// Loads the activations of one part of a block, rows `row_bytes` apart.
///
/// # Safety
/// Tiles are configured, and the rows exist.
#[inline(always)]
unsafe fn inputs(cut: Cut, activations: *const i8, row_bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tileloadd tmm6, [{x} + {row}]",
            x = in(reg) activations,
            row = in(reg) row_bytes,
            out("tmm6") _,
            options(readonly, nostack, preserves_flags)
        );
        if cut.products == 2 {
            asm!(
                "tileloadd tmm7, [{x} + {row}]",
                x = in(reg) activations.add(BLOCK),
                row = in(reg) row_bytes,
                out("tmm7") _,
                options(readonly, nostack, preserves_flags)
            );
        }
    }
}

/// Multiplies the loaded activations by the weights of panel `n`.
///
/// # Safety
/// Tiles are configured, activations loaded; the codes reach as far as the configured shape.
#[inline(always)]
unsafe fn form(cut: Cut, n: usize, codes: *const u8) {
    // SAFETY: the caller's promise.
    unsafe {
        match (cut.signed, n) {
            (true, 0) => panel_tiles!(form "tdpbssd", "tmm4", "tmm0", codes),
            (true, _) => panel_tiles!(form "tdpbssd", "tmm5", "tmm2", codes),
            (false, 0) => panel_tiles!(form "tdpbsud", "tmm4", "tmm0", codes),
            (false, _) => panel_tiles!(form "tdpbsud", "tmm5", "tmm2", codes),
        }
        if cut.products == 2 {
            match (cut.signed, n) {
                (true, 0) => panel_tiles!(form_low "tdpbssd", "tmm4", "tmm1"),
                (true, _) => panel_tiles!(form_low "tdpbssd", "tmm5", "tmm3"),
                (false, 0) => panel_tiles!(form_low "tdpbsud", "tmm4", "tmm1"),
                (false, _) => panel_tiles!(form_low "tdpbsud", "tmm5", "tmm3"),
            }
        }
    }
}

/// Stores the sums of panel `n`.
///
/// # Safety
/// Tiles are configured, for at most sixteen rows.
#[inline(always)]
unsafe fn take(cut: Cut, n: usize, dots: &mut Dots) {
    let [high, low] = dots.0.each_mut().map(|set| set.as_mut_ptr());
    // SAFETY: the caller's promise; each set has sixteen rows.
    unsafe {
        match n {
            0 => panel_tiles!(take "tmm0", high),
            _ => panel_tiles!(take "tmm2", high),
        }
        if cut.products == 2 {
            match n {
                0 => panel_tiles!(take "tmm1", low),
                _ => panel_tiles!(take "tmm3", low),
            }
        }
    }
}
