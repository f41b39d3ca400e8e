//! Row independence, bit for bit: alone, in a batch, or in another chunking.

use super::Tolerances;
use super::rig::{
    Encoded, Growing, WORKSPACE, activations, assert_same_bits, input, plain_step, poisoned,
    sample_row, sequences, widths,
};
use crate::synthetic::Stream;
use crate::{KvSpec, Ops, Product, RopeSpec, RopeStyle, Workspace};
use laneway_execution::{SamplingKey, SamplingParams, StepBatch, StepOutput, TokenId};
use laneway_numerics::{KvDtype, WeightFormat};

/// Products of rows alone, in chunks and all together are equal, in every weight format.
pub fn row_independence<B: Ops>(make: impl Fn(Workspace) -> B, tolerances: &Tolerances) {
    let (mut ops, mut noise) = (make(WORKSPACE), Stream::new(10));
    for &format in &tolerances.weights {
        let (cols, width) = (widths(format)[1], 50);
        let matrices = [(); 2].map(|()| Encoded::random(&mut noise, format, width, cols));
        let [gate, up] = matrices.map(|m| m.load(&mut ops));
        let x = activations(&mut noise, 100 * cols);
        let mut in_chunks = |chunk: usize| {
            let (mut linear, mut swiglu) = (Vec::new(), Vec::new());
            for x in x.chunks(chunk * cols) {
                let rows = x.len() / cols;
                ops.begin_step(&plain_step(rows)).expect("begin_step");
                let x_in = input(&mut ops, cols, x);
                let mut out = poisoned(&mut ops, width);
                let product = Product { matrix: &up, bias: None, out: &mut out, accumulate: false };
                ops.linear(&x_in, &mut [product]).expect("linear");
                linear.extend(ops.read(&out, rows).expect("read"));
                ops.gate_up_swiglu(&x_in, &gate, &up, &mut out).expect("gate_up_swiglu");
                swiglu.extend(ops.read(&out, rows).expect("read"));
            }
            (linear, swiglu)
        };
        let (linear, swiglu) = in_chunks(1);
        for chunk in [2, 3, 5, 7, 16, 17, 33, 64, 100] {
            let (found_linear, found_swiglu) = in_chunks(chunk);
            let what = format!("{format}: rows alone and {chunk} at a time");
            assert_same_bits(&format!("linear {what}"), &found_linear, &linear);
            assert_same_bits(&format!("gate_up_swiglu {what}"), &found_swiglu, &swiglu);
        }
    }
}

/// Whole steps of a small network: every draw of every position is the same whether sequences run
/// alone in large chunks, together in ragged steps, or token by token.
pub fn step_independence<B: Ops>(make: impl Fn(Workspace) -> B, tolerances: &Tolerances) {
    for &dtype in &tolerances.kv_dtypes {
        let alone = &[&[(0, 90)][..], &[(0, 40)], &[(1, 65)], &[(2, 9)], &[(1, 6)]];
        let mixed = &[
            &[(0, 1), (1, 63), (2, 3)][..],
            &[(1, 1), (0, 62), (2, 1)],
            &[(0, 1), (1, 1), (2, 5)],
            &[(1, 6), (0, 66)],
        ];
        let singly: Vec<Vec<(usize, usize)>> = (0..130)
            .map(|i| [(0, 130), (1, 71), (2, 9)].iter().filter(move |s| i < s.1).map(|s| (s.0, 1)))
            .map(Iterator::collect)
            .collect();
        let singly: Vec<&[(usize, usize)]> = singly.iter().map(Vec::as_slice).collect();
        let run = |seed, schedule: &[&[(usize, usize)]]| {
            Network::new(make(WORKSPACE), dtype, tolerances).run(seed, schedule)
        };
        let expected = run(1, alone);
        for (name, found) in [("mixed", run(2, mixed)), ("singly", run(3, &singly))] {
            for (sequence, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(found.len(), expected.len());
                for (position, (found, expected)) in found.iter().zip(expected).enumerate() {
                    assert_eq!(
                        found, expected,
                        "{name} in {dtype}: draw {position} of sequence {sequence}"
                    );
                }
            }
        }
    }
}

const HIDDEN: usize = 256;
const INNER: usize = 512;
const KV_WIDTH: usize = 128;
const VOCABULARY: usize = 150;
const LAYERS: usize = 2;

/// A drawn token, the bits of its log probability, and its alternatives.
type Drawn = (TokenId, u32, Vec<(TokenId, u32)>);

/// Two layers of attention and SwiGLU over every op of the contract.
struct Network<B: Ops> {
    ops: B,
    table: B::Matrix,
    norm: B::Vector,
    rope: B::Rope,
    pool: B::KvPool,
    /// q, k, v, o, gate, up, down of each layer.
    layers: Vec<[B::Matrix; 7]>,
    x: B::Activations,
    normed: B::Activations,
    q: B::Activations,
    k: B::Activations,
    v: B::Activations,
    inner: B::Activations,
}

impl<B: Ops> Network<B> {
    fn new(mut ops: B, dtype: KvDtype, tolerances: &Tolerances) -> Self {
        let mut noise = Stream::new(11);
        let mut next = 0;
        let mut matrix = |ops: &mut B, rows: usize, cols: usize| {
            let format = tolerances.weights[next % tolerances.weights.len()];
            next += 1;
            Encoded::random(&mut noise, format, rows, cols).load(ops)
        };
        let mut layer = |ops: &mut B| {
            [
                matrix(ops, HIDDEN, HIDDEN),
                matrix(ops, KV_WIDTH, HIDDEN),
                matrix(ops, KV_WIDTH, HIDDEN),
                matrix(ops, HIDDEN, HIDDEN),
                matrix(ops, INNER, HIDDEN),
                matrix(ops, INNER, HIDDEN),
                matrix(ops, HIDDEN, INNER),
            ]
        };
        let layers = (0..LAYERS).map(|_| layer(&mut ops)).collect();
        let table = Encoded::random(&mut Stream::new(12), WeightFormat::Q8_0, VOCABULARY, HIDDEN);
        let spec = KvSpec { layers: LAYERS, kv_heads: 2, head_dim: 64, dtype, pages: 8 };
        let inverse_frequencies = (0..32).map(|i| 0.7f32.powi(i)).collect();
        let rope = RopeSpec { style: RopeStyle::Interleaved, head_dim: 64, inverse_frequencies };
        let norm = Stream::new(13).normals(HIDDEN, 1.0);
        Network {
            table: table.load(&mut ops),
            norm: ops.load_vector(&norm).expect("load_vector"),
            rope: ops.new_rope(&rope).expect("new_rope"),
            pool: ops.new_kv_pool(&spec).expect("new_kv_pool"),
            layers,
            x: poisoned(&mut ops, HIDDEN),
            normed: poisoned(&mut ops, HIDDEN),
            q: poisoned(&mut ops, HIDDEN),
            k: poisoned(&mut ops, KV_WIDTH),
            v: poisoned(&mut ops, KV_WIDTH),
            inner: poisoned(&mut ops, INNER),
            ops,
        }
    }

    /// Runs `schedule`, steps of (sequence, tokens), and returns every sequence's draws.
    fn run(mut self, seed: u64, schedule: &[&[(usize, usize)]]) -> [Vec<Drawn>; 3] {
        let mut growing = sequences(&mut Stream::new(seed), 8, &[192, 128, 64]);
        let mut drawn = [const { Vec::new() }; 3];
        for segments in schedule {
            let mut batch = StepBatch::default();
            for &(sequence, tokens) in *segments {
                let Growing { id, pages, length } = &mut growing[sequence];
                let token = |position: usize| {
                    Stream::new((sequence * 1000 + position) as u64).below(VOCABULARY) as TokenId
                };
                let tokens: Vec<TokenId> = (*length..*length + tokens).map(token).collect();
                let rows = batch.push_segment(*id, *length, &tokens, pages, None);
                for (row, position) in rows.zip(*length as u64 + 1..) {
                    let key = SamplingKey { seed: sequence as u64, position };
                    let mut sample = sample_row(row, SamplingParams::PLAIN, key);
                    sample.top_logprobs = 3;
                    batch.samples.push(sample);
                }
                *length += tokens.len();
            }
            let output = self.step(&batch);
            let mut samples = output.samples.iter();
            for &(sequence, tokens) in *segments {
                for sample in samples.by_ref().take(tokens) {
                    let top = output.top[sample.top.clone()].iter();
                    let top = top.map(|&(token, logprob)| (token, logprob.to_bits())).collect();
                    drawn[sequence].push((sample.token, sample.logprob.to_bits(), top));
                }
            }
        }
        drawn
    }

    fn step(&mut self, batch: &StepBatch) -> StepOutput {
        self.forward(batch).unwrap_or_else(|e| panic!("step of {} rows: {e}", batch.rows()))
    }

    fn forward(&mut self, batch: &StepBatch) -> Result<StepOutput, crate::OpError> {
        let Network { ops, table, norm, rope, pool, layers, x, normed, q, k, v, inner } = self;
        fn product<'a, B: Ops>(
            matrix: &'a B::Matrix,
            out: &'a mut B::Activations,
            accumulate: bool,
        ) -> Product<'a, B> {
            Product { matrix, bias: None, out, accumulate }
        }
        ops.begin_step(batch)?;
        ops.embed(table, x)?;
        for (layer, [wq, wk, wv, wo, gate, up, down]) in layers.iter().enumerate() {
            ops.rms_norm(x, norm, 1e-5, normed)?;
            let mut qkv = [product(wq, q, false), product(wk, k, false), product(wv, v, false)];
            ops.linear(normed, &mut qkv)?;
            ops.rope(rope, q)?;
            ops.rope(rope, k)?;
            ops.kv_append(pool, layer, k, v)?;
            ops.attention(pool, layer, q, 0.125, normed)?;
            ops.linear(normed, &mut [product(wo, x, true)])?;
            ops.rms_norm(x, norm, 1e-5, normed)?;
            ops.gate_up_swiglu(normed, gate, up, inner)?;
            ops.linear(inner, &mut [product(down, x, true)])?;
        }
        let sampled: Vec<usize> = batch.samples.iter().map(|sample| sample.row).collect();
        ops.gather_rows(x, &sampled, q)?;
        ops.rms_norm(q, norm, 1e-5, normed)?;
        let mut output = StepOutput::default();
        ops.logits_sample(normed, table, &mut output)?;
        Ok(output)
    }
}
