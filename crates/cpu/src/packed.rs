//! Weights as the kernels read them: panels of sixteen outputs, repacked once at load.
//!
//! A panel holds its outputs' weights in the order of the inputs, so that a kernel streams it from
//! front to back. For the block formats each block of inputs has
//! - codes: vectors of 64 bytes, lane `l` (4 bytes) belonging to output `l`. Four-bit formats put
//!   eight inputs into a vector, inputs `8j..8j+4` in the low nibbles and `8j+4..8j+8` in the high
//!   ones; others four inputs, one a byte;
//! - one scale, and for some formats one minimum, an output.
//!
//! Codes are unsigned; formats with signed codes have `offset` added, which a kernel takes out
//! again exactly, in integers.

use crate::OpError;
use crate::buffer::Buffer;
use crate::simd::LANES;
use laneway_numerics::{
    BLOCK_ELEMENTS, SUPERBLOCK_ELEMENTS, WeightFormat, f16, q4_0, q4_1, q4k, q5_0, q5_1, q5k, q6k,
    q8_0,
};
use laneway_ops::MatrixSource;

/// How codes and factors of a block format are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockLayout {
    /// Bits of a code: 4, two of which share a byte, or 5, 6 or 8.
    pub bits: u32,
    /// Inputs that share a scale: 32 or 16.
    pub block: usize,
    /// Added to every code: half the range, where there is no minimum.
    pub offset: i32,
    /// There is a minimum beside the scale.
    pub minimum: bool,
    /// Factors in f32 instead of f16: products of two factors, which f16 would round.
    pub wide: bool,
}

impl BlockLayout {
    /// The layout of a format, `None` for plain floating-point weights.
    pub const fn of(format: WeightFormat) -> Option<Self> {
        let (bits, block, minimum, wide) = match format {
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16 => return None,
            WeightFormat::Q4_0 => (4, 32, false, false),
            WeightFormat::Q4_1 => (4, 32, true, false),
            WeightFormat::Q5_0 => (5, 32, false, false),
            WeightFormat::Q5_1 => (5, 32, true, false),
            WeightFormat::Q8_0 => (8, 32, false, false),
            WeightFormat::Q4K => (4, 32, true, true),
            WeightFormat::Q5K => (5, 32, true, true),
            WeightFormat::Q6K => (6, 16, false, true),
        };
        let offset = if minimum { 0 } else { 1 << (bits - 1) };
        Some(BlockLayout { bits, block, offset, minimum, wide })
    }

    /// Bytes of one panel's codes for `cols` inputs.
    pub const fn code_bytes(self, cols: usize) -> usize {
        if self.bits == 4 { cols * LANES / 2 } else { cols * LANES }
    }

    /// Factors (scales and minima) of one panel for `cols` inputs.
    pub const fn factors(self, cols: usize) -> usize {
        cols / self.block * LANES * if self.minimum { 2 } else { 1 }
    }

    const fn factor_bytes(self) -> usize {
        if self.wide { 4 } else { 2 }
    }
}

/// Where the weights of a matrix lie.
pub(crate) enum Storage {
    /// A block format: codes, and factors as f16 (`narrow`) or f32 (`wide`).
    Blocks { layout: BlockLayout, codes: Buffer<u8>, narrow: Buffer<u16>, wide: Buffer<f32> },
    /// 16-bit floats, `[panel][input][lane]`.
    Half { bf16: bool, values: Buffer<u16> },
    /// f32, `[panel][input][lane]`.
    Single(Buffer<f32>),
}

/// A packed weight matrix.
pub struct Matrix {
    /// Outputs.
    pub(crate) rows: usize,
    /// Inputs.
    pub(crate) cols: usize,
    pub(crate) storage: Storage,
}

/// Bytes of a packed matrix.
pub(crate) fn packed_bytes(format: WeightFormat, rows: usize, cols: usize) -> usize {
    let panels = rows.div_ceil(LANES);
    let round = |bytes: usize| bytes.next_multiple_of(64);
    match BlockLayout::of(format) {
        Some(layout) => {
            round(panels * layout.code_bytes(cols))
                + round(panels * layout.factors(cols) * layout.factor_bytes())
        }
        None => round(panels * LANES * cols * format.block_bytes()),
    }
}

impl Matrix {
    /// Packs a matrix on up to `threads` threads.
    pub fn pack(source: &MatrixSource<'_>, threads: usize) -> Result<Self, OpError> {
        const OP: &str = "load_matrix";
        let MatrixSource { name, format, rows, cols, data } = *source;
        let shape = |detail: String| OpError::Shape { op: OP, detail };
        let bytes = format.bytes(rows, cols).map_err(|e| shape(format!("{name}: {e}")))?;
        if data.len() != bytes || rows == 0 || cols == 0 {
            let found = data.len();
            return Err(shape(format!(
                "{name}: {found} bytes of {format} for {rows} × {cols}, expected {bytes}"
            )));
        }
        let row_bytes = bytes / rows;
        let panels = rows.div_ceil(LANES);
        let elements = panels * LANES * cols;
        let storage = match BlockLayout::of(format) {
            Some(layout) => {
                let factors = panels * layout.factors(cols);
                let (narrow, wide) = if layout.wide { (0, factors) } else { (factors, 0) };
                let mut codes = Buffer::zeroed(OP, panels * layout.code_bytes(cols))?;
                let mut narrow = Buffer::zeroed(OP, narrow)?;
                let mut wide = Buffer::zeroed(OP, wide)?;
                // Each thread packs some whole panels.
                let share = if elements < PARALLEL { panels } else { panels.div_ceil(threads) };
                std::thread::scope(|scope| {
                    let factors = share * layout.factors(cols);
                    let parts = (codes.chunks_mut(share * layout.code_bytes(cols)))
                        .zip(chunks_or_empty(&mut narrow, factors))
                        .zip(chunks_or_empty(&mut wide, factors));
                    for (part, ((codes, narrow), wide)) in parts.enumerate() {
                        let mut blocks = Blocks { layout, cols, codes, narrow, wide };
                        let rows = data.chunks_exact(row_bytes).skip(part * share * LANES);
                        let pack = move || {
                            for (row, bytes) in rows.take(share * LANES).enumerate() {
                                blocks.put_row(format, row, bytes);
                            }
                        };
                        if share == panels {
                            pack();
                        } else {
                            scope.spawn(pack);
                        }
                    }
                });
                Storage::Blocks { layout, codes, narrow, wide }
            }
            None if format == WeightFormat::F32 => {
                let mut values = Buffer::<f32>::zeroed(OP, elements)?;
                for (row, bytes) in data.chunks_exact(row_bytes).enumerate() {
                    for (col, bytes) in bytes.as_chunks::<4>().0.iter().enumerate() {
                        values[at(row, col, cols)] = f32::from_le_bytes(*bytes);
                    }
                }
                Storage::Single(values)
            }
            None => {
                let mut values = Buffer::<u16>::zeroed(OP, elements)?;
                for (row, bytes) in data.chunks_exact(row_bytes).enumerate() {
                    for (col, bytes) in bytes.as_chunks::<2>().0.iter().enumerate() {
                        values[at(row, col, cols)] = u16::from_le_bytes(*bytes);
                    }
                }
                Storage::Half { bf16: format == WeightFormat::Bf16, values }
            }
        };
        Ok(Matrix { rows, cols, storage })
    }

    /// Decodes one row.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        let (panel, lane, cols) = (row / LANES, row % LANES, self.cols);
        match &self.storage {
            Storage::Single(values) => {
                out.iter_mut().enumerate().for_each(|(c, out)| *out = values[at(row, c, cols)]);
            }
            Storage::Half { bf16, values } => {
                for (c, out) in out.iter_mut().enumerate() {
                    let bits = values[at(row, c, cols)];
                    *out = if *bf16 {
                        laneway_numerics::bf16::from_bits(bits).to_f32()
                    } else {
                        f16::from_bits(bits).to_f32()
                    };
                }
            }
            Storage::Blocks { layout, codes, narrow, wide } => {
                let codes = &codes[panel * layout.code_bytes(cols)..];
                let first = panel * layout.factors(cols) + lane;
                let per_block = if layout.minimum { 2 * LANES } else { LANES };
                for (c, out) in out.iter_mut().enumerate() {
                    let (byte, shift) = code_place(*layout, lane, c);
                    let code =
                        if layout.bits == 4 { codes[byte] >> shift & 15 } else { codes[byte] };
                    let index = first + c / layout.block * per_block;
                    let factor = |i: usize| {
                        if layout.wide { wide[i] } else { f16::from_bits(narrow[i]).to_f32() }
                    };
                    let minimum = if layout.minimum { factor(index + LANES) } else { 0.0 };
                    *out = factor(index) * (i32::from(code) - layout.offset) as f32 + minimum;
                }
            }
        }
    }
}

/// Place of a plain weight.
const fn at(row: usize, col: usize, cols: usize) -> usize {
    (row / LANES * cols + col) * LANES + row % LANES
}

/// Byte within the panel, and shift within the byte, of a code.
const fn code_place(layout: BlockLayout, lane: usize, col: usize) -> (usize, u32) {
    if layout.bits == 4 {
        (col / 8 * 64 + 4 * lane + col % 4, if col % 8 < 4 { 0 } else { 4 })
    } else {
        (col / 4 * 64 + 4 * lane + col % 4, 0)
    }
}

/// Elements from which on several threads pack a matrix.
const PARALLEL: usize = 1 << 18;

/// Chunks of a buffer; of an empty one, as many empty chunks as are asked for.
fn chunks_or_empty<T>(buffer: &mut [T], length: usize) -> impl Iterator<Item = &mut [T]> {
    let empty = buffer.is_empty();
    buffer
        .chunks_mut(length)
        .chain(std::iter::repeat_with(|| &mut [][..]).take_while(move |_| empty))
}

/// Some panels of a matrix of a block format while they are packed.
struct Blocks<'a> {
    layout: BlockLayout,
    cols: usize,
    codes: &'a mut [u8],
    narrow: &'a mut [u16],
    wide: &'a mut [f32],
}

impl Blocks<'_> {
    fn put_row(&mut self, format: WeightFormat, row: usize, bytes: &[u8]) {
        const B: usize = BLOCK_ELEMENTS;
        match format {
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16 => {}
            WeightFormat::Q4_0 => {
                for (i, block) in bytes.as_chunks::<{ q4_0::BLOCK_BYTES }>().0.iter().enumerate() {
                    let block = q4_0::Block::new(block);
                    self.put(row, i * B, &block.codes(), block.d(), 0.0);
                }
            }
            WeightFormat::Q4_1 => {
                for (i, block) in bytes.as_chunks::<{ q4_1::BLOCK_BYTES }>().0.iter().enumerate() {
                    let block = q4_1::Block::new(block);
                    self.put(row, i * B, &block.codes(), block.d(), block.m());
                }
            }
            WeightFormat::Q5_0 => {
                for (i, block) in bytes.as_chunks::<{ q5_0::BLOCK_BYTES }>().0.iter().enumerate() {
                    let block = q5_0::Block::new(block);
                    self.put(row, i * B, &block.codes(), block.d(), 0.0);
                }
            }
            WeightFormat::Q5_1 => {
                for (i, block) in bytes.as_chunks::<{ q5_1::BLOCK_BYTES }>().0.iter().enumerate() {
                    let block = q5_1::Block::new(block);
                    self.put(row, i * B, &block.codes(), block.d(), block.m());
                }
            }
            WeightFormat::Q8_0 => {
                for (i, block) in bytes.as_chunks::<{ q8_0::BLOCK_BYTES }>().0.iter().enumerate() {
                    let block = q8_0::Block::new(block);
                    let codes = block.codes().map(|code| (code as u8) ^ 0x80);
                    self.put(row, i * B, &codes, block.d(), 0.0);
                }
            }
            WeightFormat::Q4K => {
                for (i, block) in bytes.as_chunks::<{ q4k::BLOCK_BYTES }>().0.iter().enumerate() {
                    let block = q4k::Block::new(block);
                    for j in 0..SUPERBLOCK_ELEMENTS / B {
                        let (scale, min) = block.scale(j);
                        let (d, m) = (block.d() * f32::from(scale), block.dmin() * f32::from(min));
                        self.put(row, i * SUPERBLOCK_ELEMENTS + j * B, &block.codes(j), d, -m);
                    }
                }
            }
            WeightFormat::Q5K => {
                for (i, block) in bytes.as_chunks::<{ q5k::BLOCK_BYTES }>().0.iter().enumerate() {
                    let block = q5k::Block::new(block);
                    for j in 0..SUPERBLOCK_ELEMENTS / B {
                        let (scale, min) = block.scale(j);
                        let (d, m) = (block.d() * f32::from(scale), block.dmin() * f32::from(min));
                        self.put(row, i * SUPERBLOCK_ELEMENTS + j * B, &block.codes(j), d, -m);
                    }
                }
            }
            WeightFormat::Q6K => {
                const S: usize = q6k::SUB_BLOCK_ELEMENTS;
                for (i, block) in bytes.as_chunks::<{ q6k::BLOCK_BYTES }>().0.iter().enumerate() {
                    let block = q6k::Block::new(block);
                    for j in 0..SUPERBLOCK_ELEMENTS / S {
                        let codes = block.codes(j).map(|code| (code + 32) as u8);
                        let d = block.d() * f32::from(block.scale(j));
                        self.put(row, i * SUPERBLOCK_ELEMENTS + j * S, &codes, d, 0.0);
                    }
                }
            }
        }
    }

    /// Stores one block of one output.
    fn put(&mut self, row: usize, col: usize, codes: &[u8], scale: f32, minimum: f32) {
        let (layout, panel, lane) = (self.layout, row / LANES, row % LANES);
        let base = panel * layout.code_bytes(self.cols);
        if layout.bits == 4 {
            for (j, eight) in codes.as_chunks::<8>().0.iter().enumerate() {
                let place = base + (col / 8 + j) * 64 + 4 * lane;
                let [a, b, c, d, e, f, g, h] = *eight;
                let pairs = [a | e << 4, b | f << 4, c | g << 4, d | h << 4];
                self.codes[place..place + 4].copy_from_slice(&pairs);
            }
        } else {
            for (j, four) in codes.as_chunks::<4>().0.iter().enumerate() {
                let place = base + (col / 4 + j) * 64 + 4 * lane;
                self.codes[place..place + 4].copy_from_slice(four);
            }
        }
        let per_block = if layout.minimum { 2 * LANES } else { LANES };
        let index = panel * layout.factors(self.cols) + col / layout.block * per_block + lane;
        let mut factor = |index: usize, value: f32| {
            if layout.wide {
                self.wide[index] = value;
            } else {
                // Exact: the value was f16 in the file.
                self.narrow[index] = f16::from_f32(value).to_bits();
            }
        };
        factor(index, scale);
        if layout.minimum {
            factor(index + LANES, minimum);
        }
    }
}
