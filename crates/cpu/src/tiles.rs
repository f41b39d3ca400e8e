//! Products of several rows with a panel, on the tile multipliers of AMX.
//!
//! Only the integer sums of a block are formed differently from [`crate::matmul`]. They are exact
//! either way, and what follows is done per row in the same operations and the same order, so the
//! results are equal bit for bit.
//!
//! One instruction multiplies up to sixteen rows by a panel's sixteen outputs over up to 64 bytes
//! of a row: all planes of a block, weights unpacked to what each plane meets. Stable Rust has no
//! intrinsics for tiles, hence the assembly.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.

use crate::isa::{Isa, Kernel, dispatch};
use crate::matmul::{HALF, Panel, SINGLE, Sums, Weights, load, split};
use crate::packed::BlockLayout;
use crate::quantize::{BLOCK, PLANE_BITS, View};
use crate::simd::{Avx512, LANES, Simd};
use std::arch::asm;
use std::arch::x86_64::{
    __cpuid_count, __m512i, _mm512_load_si512, _mm512_set1_epi8, _mm512_setzero_si512,
    _mm512_store_si512, _mm512_sub_epi8,
};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::OnceLock;

/// Rows of one tile.
const TILE_ROWS: usize = 16;

/// Most blocks whose weights are unpacked at a time: 16 KiB for each panel, which the first-level
/// cache holds.
const STRETCH: usize = 16;

/// How far ahead packed weights are asked for: about a stretch, for with few rows their reading is
/// what takes the time.
const AHEAD: usize = 4096;

/// Fewer rows are quicker with vectors: unpacking weights for the tiles would cost more than it
/// saves.
const LEAST_ROWS: usize = 6;

/// True if the machine has 8-bit tile multipliers and the system lets this process use them.
pub(crate) fn is_available() -> bool {
    /// `CPUID.7.0:EDX`: AMX-TILE and AMX-INT8.
    const FEATURES: u32 = 1 << 24 | 1 << 25;
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        let has =
            is_x86_feature_detected!("avx512f") && __cpuid_count(7, 0).edx & FEATURES == FEATURES;
        has && is_permitted()
    })
}

/// Asks the system to let this process use tiles.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    /// `ARCH_REQ_XCOMP_PERM` and `XFEATURE_XTILEDATA` of Linux's `arch/x86/include/uapi/asm`.
    const REQUEST: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and changes nothing but this process's permission to use
    // tiles, which the kernel refuses where it cannot save their state.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) == 0 }
}

/// Elsewhere we do not know how.
#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
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

/// Computes panels of the same rows with tiles. False if there are none, if the panels are not of
/// one block format, or if the rows are too few; then nothing is done.
///
/// # Safety
/// The instruction set is available; for each panel, what [`Panel::compute`] demands.
pub(crate) unsafe fn compute<const N: usize>(
    panels: [&mut Panel<'_>; N],
    isa: Isa,
    configuration: &mut Configuration,
) -> bool {
    let (input, first, count) = (panels[0].input, panels[0].first, panels[0].count);
    let Some(x) = input.quantized.filter(|_| isa == Isa::Amx && count >= LEAST_ROWS) else {
        return false;
    };
    let weights = panels.each_ref().map(|panel| Weights::of(panel.matrix, panel.panel));
    let Some(model) = weights[0] else { return false };
    let same = |w: &Weights| (w.layout, w.cols) == (model.layout, model.cols);
    if !weights.iter().all(|w| w.as_ref().is_some_and(same)) {
        return false;
    }
    let weights = weights.map(|w| w.unwrap_or(model));
    let sums = panels.map(|panel| &mut *panel.sums);
    // SAFETY: the caller's promise; there are tiles on this instruction set.
    unsafe { dispatch(isa, Tiles { configuration, weights, x, first, count, sums }) };
    true
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

/// Bytes of a block's unpacked weights: a byte for each output, input and plane, and that again
/// where halves of a block have scales of their own, the other half's weights being 0.
const UNPACKED: usize = 2 * 2 * BLOCK * LANES;

/// Unpacked weights of a stretch.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Codes([[MaybeUninit<u8>; UNPACKED]; STRETCH]);

/// Integer sums of the rows of one part of a block.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Dots([[MaybeUninit<i32>; LANES]; TILE_ROWS]);

impl<const N: usize> Kernel for Tiles<'_, N> {
    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let blocks = self.weights[0].cols / BLOCK;
        let depth = self.x.planes * BLOCK;
        let mut codes = [const { Codes([[MaybeUninit::uninit(); UNPACKED]; STRETCH]) }; N];
        for sums in &mut self.sums {
            sums[..self.count].fill([0.0; LANES]);
        }
        // The activations of many rows want room in the cache, too.
        let step = if self.count <= TILE_ROWS { STRETCH } else { STRETCH / 2 };
        for start in (0..blocks).step_by(step) {
            let stretch = start..blocks.min(start + step);
            // SAFETY: the dispatching caller promises tiles and AVX-512; blocks and rows exist.
            unsafe {
                for n in 0..N {
                    unpack(self.weights[n], self.x.planes, stretch.clone(), &mut codes[n]);
                }
                for first in (0..self.count).step_by(TILE_ROWS) {
                    let rows = TILE_ROWS.min(self.count - first);
                    if self.configuration.shape != (rows, depth) {
                        configure(rows, depth);
                        self.configuration.shape = (rows, depth);
                    }
                    self.add(first..first + rows, stretch.clone(), &codes);
                }
            }
        }
    }
}

impl<const N: usize> Tiles<'_, N> {
    /// Adds the products of a stretch of blocks to the sums of some rows, at most a tile's.
    ///
    /// # Safety
    /// Tiles are configured for the rows; blocks and rows exist.
    #[inline(always)]
    unsafe fn add(&mut self, rows: Range<usize>, blocks: Range<usize>, codes: &[Codes; N]) {
        let (x, BlockLayout { block: scaled, minimum, .. }) = (self.x, self.weights[0].layout);
        let (first, row_bytes) = (self.first + rows.start, x.planes * BLOCK);
        // A block is one part or two; a shift finds a part's block where a division would be slow.
        let halved = u32::from(scaled < BLOCK);
        let count = blocks.len() << halved;
        let mut dots = [const { Dots([[MaybeUninit::uninit(); LANES]; TILE_ROWS]) }; N];
        // SAFETY: the caller's promise; the stretch has `count` parts.
        unsafe {
            let at = |part: usize| (blocks.start + (part >> halved)) * x.capacity + first;
            let activations = |part: usize| x.codes.add(at(part) * row_bytes).cast_const();
            let code = |n: usize, part: usize| {
                let half = part & halved as usize;
                codes[n].0[part >> halved].as_ptr().add(half * UNPACKED / 2).cast::<u8>()
            };
            inputs(activations(0), row_bytes);
            for n in 0..N {
                form(minimum, n, code(n, 0));
            }
            for part in 0..count {
                let index = (blocks.start << halved) + part;
                let index = index * if minimum { 2 * LANES } else { LANES };
                for n in 0..N {
                    take(n, &mut dots[n]);
                    // The next part's products are formed while this one's are scaled.
                    if part + 1 < count {
                        if n == 0 {
                            inputs(activations(part + 1), row_bytes);
                        }
                        form(minimum, n, code(n, part + 1));
                        if n == 0 {
                            let next = activations(part + 1).wrapping_add(x.capacity * row_bytes);
                            for line in (0..rows.len() * row_bytes).step_by(64) {
                                Avx512::prefetch(next.wrapping_add(line).cast());
                            }
                        }
                    }
                    let factors = Factors {
                        weights: self.weights[n],
                        index,
                        planes: x.planes,
                        scales: x.scales.add(at(part)),
                        totals: x.totals.add(at(part)),
                    };
                    let sums = &mut self.sums[n][rows.clone()];
                    if minimum {
                        scale::<true>(factors, &dots[n], sums);
                    } else {
                        scale::<false>(factors, &dots[n], sums);
                    }
                }
            }
        }
    }
}

/// Shapes the tiles for `depth` bytes of a row: 0 and 1 take the panels' sums, 2 and 3 their
/// weights, 4 activations.
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
    let four = depth as u8 / 4;
    config.row_bytes[..5].copy_from_slice(&[wide, wide, wide, wide, depth]);
    config.rows[..5].copy_from_slice(&[rows, rows, four, four, rows]);
    let config = &raw const config;
    // SAFETY: palette 1 has eight tiles of up to 16 rows of 64 bytes; all shapes are within.
    unsafe { asm!("ldtilecfg [{}]", in(reg) config, options(readonly, nostack, preserves_flags)) };
}

/// Unpacks the weights of some blocks to bytes, offsets taken out.
///
/// # Safety
/// AVX-512 is available; the blocks, at most [`STRETCH`], exist.
#[inline(always)]
unsafe fn unpack(weights: Weights, planes: usize, blocks: Range<usize>, out: &mut Codes) {
    // SAFETY: the caller's promise; constants are those of the layout.
    unsafe {
        match (weights.layout.bits, planes) {
            (4, 1) => unpack_bits::<1, 4>(weights, blocks, out),
            (4, _) => unpack_bits::<2, 4>(weights, blocks, out),
            (5, 2) => unpack_bits::<2, 5>(weights, blocks, out),
            (6, 2) => unpack_bits::<2, 6>(weights, blocks, out),
            (_, 2) => unpack_bits::<2, 8>(weights, blocks, out),
            _ => unpack_bits::<1, 8>(weights, blocks, out),
        }
    }
}

/// [`unpack`] for codes of `BITS` bits, any above four for one plane, and `P` planes.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn unpack_bits<const P: usize, const BITS: u32>(
    weights: Weights,
    blocks: Range<usize>,
    out: &mut Codes,
) {
    let BlockLayout { offset, block: scaled, .. } = weights.layout;
    let block_bytes = if BITS == 4 { BLOCK * LANES / 2 } else { BLOCK * LANES };
    // SAFETY: the caller's promise; a block has room for its codes.
    unsafe {
        // Bytes wrap, so that 128 is -128, and the difference is the signed code.
        let [high, low] = match P {
            1 => [offset, offset],
            _ => [offset << (8 - BITS), offset >> (BITS - PLANE_BITS)],
        };
        let offsets = [_mm512_set1_epi8(high as i8), _mm512_set1_epi8(low as i8)];
        for (block, out) in blocks.zip(&mut out.0) {
            let out = out.as_mut_ptr().cast::<__m512i>();
            let codes = weights.codes.add(block * block_bytes);
            for line in (0..block_bytes).step_by(64) {
                Avx512::prefetch(codes.wrapping_add(AHEAD + line));
            }
            for four in 0..BLOCK / 4 {
                let codes = split::<Avx512, P, BITS>(codes, four);
                for plane in 0..P {
                    let code = _mm512_sub_epi8(codes[plane], offsets[plane]);
                    let place = out.add(plane * (BLOCK / 4) + four);
                    if scaled == BLOCK {
                        _mm512_store_si512(place, code);
                        continue;
                    }
                    let other = place.add(UNPACKED / 2 / 64);
                    let zero = _mm512_setzero_si512();
                    let first = four < scaled / 4;
                    _mm512_store_si512(place, if first { code } else { zero });
                    _mm512_store_si512(other, if first { zero } else { code });
                }
            }
        }
    }
}

/// Sixteen factors of a panel, from the one at `index`.
///
/// # Safety
/// `S` is available, and the panel has these factors.
#[inline(always)]
unsafe fn factor<S: Simd>(weights: Weights, index: usize) -> S::F {
    // SAFETY: the caller's promise.
    unsafe {
        if weights.layout.wide {
            load::<S, SINGLE>(weights.factors, index)
        } else {
            load::<S, HALF>(weights.factors, index)
        }
    }
}

/// What the integer sums of one part of a block are multiplied by.
#[derive(Clone, Copy)]
struct Factors {
    weights: Weights,
    /// The part's first factor in the panel.
    index: usize,
    planes: usize,
    /// Scale and total of each row.
    scales: *const f32,
    totals: *const f32,
}

/// Scales the integer sums of one part of a block and adds them to the rows' sums.
///
/// # Safety
/// AVX-512 is available; the rows' integer sums and all factors are there.
#[inline(always)]
unsafe fn scale<const MINIMUM: bool>(factors: Factors, dots: &Dots, sums: &mut [[f32; LANES]]) {
    // SAFETY: the caller's promise.
    unsafe {
        // The length is worth knowing: usual ones' loops are unrolled.
        if let Ok(all) = <&mut [[f32; LANES]; TILE_ROWS]>::try_from(&mut *sums) {
            scale_rows::<MINIMUM>(factors, dots, all);
        } else if let Ok(half) = <&mut [[f32; LANES]; TILE_ROWS / 2]>::try_from(&mut *sums) {
            scale_rows::<MINIMUM>(factors, dots, half);
        } else {
            scale_rows::<MINIMUM>(factors, dots, sums);
        }
    }
}

/// [`scale`] for a number of rows that the compiler may know.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn scale_rows<const MINIMUM: bool>(
    Factors { weights, index, planes, scales, totals }: Factors,
    dots: &Dots,
    sums: &mut [[f32; LANES]],
) {
    type S = Avx512;
    let unit = if planes == 2 { 1 << (weights.layout.bits - PLANE_BITS) } else { 1 };
    // SAFETY: the caller's promise.
    unsafe {
        let factors = S::mul(factor::<S>(weights, index), S::splat(unit as f32));
        let least = if MINIMUM { factor::<S>(weights, index + LANES) } else { factors };
        for (r, sum) in sums.iter_mut().enumerate() {
            let dot = _mm512_load_si512(dots.0[r].as_ptr().cast());
            let step = S::mul(factors, S::splat(*scales.add(r)));
            let mut value = S::fma(S::int_to_f(dot), step, S::load(sum.as_ptr()));
            if MINIMUM {
                value = S::fma(least, S::splat(*totals.add(r)), value);
            }
            S::store(sum.as_mut_ptr(), value);
        }
    }
}

/// Loads the activations of one part of a block, rows `row_bytes` apart.
///
/// Nothing here is compiled with the feature that would let the compiler use tiles itself, so they
/// keep their contents from one block of assembly to the next.
///
/// # Safety
/// Tiles are configured, and the rows exist.
#[inline(always)]
unsafe fn inputs(activations: *const i8, row_bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tileloadd tmm4, [{x} + {row}]",
            x = in(reg) activations,
            row = in(reg) row_bytes,
            out("tmm4") _,
            options(readonly, nostack, preserves_flags)
        );
    }
}

/// Loads weights, and multiplies the loaded activations by them.
macro_rules! product {
    ($dot:literal, $weights:tt, $sum:tt, $codes:expr) => {
        asm!(
            concat!("tileloadd ", $weights, ", [{codes} + {vector}]"),
            concat!("tilezero ", $sum),
            concat!($dot, " ", $sum, ", tmm4, ", $weights),
            codes = in(reg) $codes,
            vector = in(reg) 4 * LANES,
            out($weights) _, out($sum) _,
            options(readonly, nostack, preserves_flags)
        )
    };
}

/// Multiplies the loaded activations by the weights of panel `n`: unsigned bytes where the format
/// has a minimum, else signed ones.
///
/// # Safety
/// Tiles are configured, activations loaded; the codes reach as far as the configured shape.
#[inline(always)]
unsafe fn form(unsigned: bool, n: usize, codes: *const u8) {
    // SAFETY: the caller's promise.
    unsafe {
        match (unsigned, n) {
            (false, 0) => product!("tdpbssd", "tmm2", "tmm0", codes),
            (false, _) => product!("tdpbssd", "tmm3", "tmm1", codes),
            (true, 0) => product!("tdpbsud", "tmm2", "tmm0", codes),
            (true, _) => product!("tdpbsud", "tmm3", "tmm1", codes),
        }
    }
}

/// Stores the sums of panel `n`.
///
/// # Safety
/// Tiles are configured, for at most sixteen rows.
#[inline(always)]
unsafe fn take(n: usize, dots: &mut Dots) {
    let out = dots.0.as_mut_ptr();
    // SAFETY: the caller's promise; there are sixteen rows.
    unsafe {
        let vector = 4 * LANES;
        match n {
            0 => asm!(
                "tilestored [{out} + {vector}], tmm0",
                out = in(reg) out,
                vector = in(reg) vector,
                options(nostack, preserves_flags)
            ),
            _ => asm!(
                "tilestored [{out} + {vector}], tmm1",
                out = in(reg) out,
                vector = in(reg) vector,
                options(nostack, preserves_flags)
            ),
        }
    }
}
