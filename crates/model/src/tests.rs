//! A synthetic model against a forward pass written down once more, naively and in f64.

use crate::testing::{Recipe, TestFile};
use crate::{Architecture, LLAMA, Layout, LoadError, LoadOptions, Model, QWEN2, QWEN3};
use laneway_execution::{
    Draw, ExecutionError, Executor, PageId, SampleRow, SamplingKey, SamplingParams, SequenceId,
    StepBatch, StepOutput, TokenId,
};
use laneway_numerics::KvDtype;
use laneway_ops::reference::ReferenceOps;
use laneway_ops::synthetic::Stream;
use laneway_ops::{RopeStyle, Workspace};

const OPTIONS: LoadOptions = LoadOptions {
    kv_dtype: KvDtype::F32,
    pages: 8,
    top_logprobs: 200,
    state_slots: 4,
    drafts: 5,
    drafting: true,
};

fn backend() -> ReferenceOps {
    ReferenceOps::new(Workspace { rows: 64, samples: 64, context: 256 })
}

fn load(recipe: &Recipe, file: &TestFile) -> Result<Model<ReferenceOps>, LoadError> {
    Model::load_as(&recipe.architecture, file, backend(), &OPTIONS, &mut |_| ())
}

/// Log probabilities of the next token after every position of `tokens`.
fn naive(recipe: &Recipe, file: &TestFile, tokens: &[TokenId]) -> Vec<Vec<f64>> {
    let dim = recipe.head_dim;
    let mut keys: Vec<Vec<Vec<f64>>> = vec![vec![]; recipe.layers];
    let mut values = keys.clone();
    let mut result = Vec::new();
    for (position, &token) in tokens.iter().enumerate() {
        let table = file.tensor("token_embd.weight");
        let mut x = table[token as usize * recipe.hidden..][..recipe.hidden].to_vec();
        for layer in 0..recipe.layers {
            let named = |name: &str| file.tensor(&format!("blk.{layer}.{name}"));
            let project = |x: &[f64], name: &str| {
                let mut out = times(&named(&format!("{name}.weight")), x);
                if recipe.architecture.qkv_bias {
                    add(&mut out, &named(&format!("{name}.bias")));
                }
                out
            };
            let normed = norm(&x, &named("attn_norm.weight"));
            let mut q = project(&normed, "attn_q");
            let mut k = project(&normed, "attn_k");
            if recipe.architecture.head_norm {
                q = q.chunks(dim).flat_map(|h| norm(h, &named("attn_q_norm.weight"))).collect();
                k = k.chunks(dim).flat_map(|h| norm(h, &named("attn_k_norm.weight"))).collect();
            }
            q.chunks_mut(dim).chain(k.chunks_mut(dim)).for_each(|h| rotate(recipe, h, position));
            keys[layer].push(k);
            values[layer].push(project(&normed, "attn_v"));
            let mut attended = Vec::new();
            for (head, q) in q.chunks(dim).enumerate() {
                let from = head / (recipe.heads / recipe.kv_heads) * dim;
                let scores: Vec<f64> = (keys[layer].iter())
                    .map(|k| dot(q, &k[from..from + dim]) / (dim as f64).sqrt())
                    .collect();
                let total: f64 = scores.iter().map(|s| s.exp()).sum();
                attended.extend((0..dim).map(|e| {
                    let weighted = scores.iter().zip(&values[layer]);
                    weighted.map(|(s, v)| s.exp() / total * v[from + e]).sum::<f64>()
                }));
            }
            add(&mut x, &times(&named("attn_output.weight"), &attended));
            let normed = norm(&x, &named("ffn_norm.weight"));
            let gate = times(&named("ffn_gate.weight"), &normed);
            let up = times(&named("ffn_up.weight"), &normed);
            let inner: Vec<f64> =
                gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            add(&mut x, &times(&named("ffn_down.weight"), &inner));
        }
        let head = if recipe.tied { table } else { file.tensor("output.weight") };
        let logits = times(&head, &norm(&x, &file.tensor("output_norm.weight")));
        let log_sum = logits.iter().map(|l| l.exp()).sum::<f64>().ln();
        result.push(logits.iter().map(|l| l - log_sum).collect());
    }
    result
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn times(matrix: &[f64], x: &[f64]) -> Vec<f64> {
    matrix.chunks(x.len()).map(|row| dot(row, x)).collect()
}

fn add(out: &mut [f64], x: &[f64]) {
    out.iter_mut().zip(x).for_each(|(out, x)| *out += x);
}

fn norm(x: &[f64], weight: &[f64]) -> Vec<f64> {
    let scale = (dot(x, x) / x.len() as f64 + 1e-5).sqrt();
    x.iter().zip(weight).map(|(x, w)| x / scale * w).collect()
}

fn rotate(recipe: &Recipe, head: &mut [f64], position: usize) {
    for i in 0..recipe.rotary_dims / 2 {
        let mut angle = position as f64 * 1000f64.powf(-2.0 * i as f64 / recipe.rotary_dims as f64);
        angle /= f64::from(recipe.linear_scaling.unwrap_or(1.0));
        if recipe.rope_factors {
            angle /= f64::from(TestFile::rope_factor(i));
        }
        let (a, b) = match recipe.architecture.rope_style(Layout::Gguf) {
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
            RopeStyle::Halves => (i, i + recipe.rotary_dims / 2),
        };
        (head[a], head[b]) = (
            head[a] * angle.cos() - head[b] * angle.sin(),
            head[a] * angle.sin() + head[b] * angle.cos(),
        );
    }
}

fn sample(row: usize, top_logprobs: usize) -> SampleRow {
    SampleRow {
        row,
        draw: Draw::Sample,
        params: SamplingParams::GREEDY,
        key: SamplingKey { seed: 0, position: 0 },
        top_logprobs,
        counts: 0..0,
        biases: 0..0,
        mask: 0..0,
    }
}

/// Runs two sequences in ragged steps and compares every position's whole distribution.
fn assert_equals_naive(recipe: &Recipe) {
    let file = TestFile::new(recipe);
    let mut model = load(recipe, &file).unwrap();
    let mut noise = Stream::new(9);
    let mut tokens = |n: usize| -> Vec<TokenId> {
        (0..n).map(|_| noise.below(recipe.vocabulary) as TokenId).collect()
    };
    let sequences = [tokens(70), tokens(9)];
    let expected = sequences.each_ref().map(|tokens| naive(recipe, &file, tokens));
    let pages = [[PageId(5), PageId(2)], [PageId(7), PageId(0)]];
    let mut done = [0, 0];
    for step in [[40, 3], [23, 1], [1, 0], [1, 4], [5, 1]] {
        let (mut batch, mut rows) = (StepBatch::default(), Vec::new());
        for (s, n) in step.into_iter().enumerate().filter(|(_, n)| *n > 0) {
            let tokens = &sequences[s][done[s]..done[s] + n];
            let id = SequenceId(s as u64);
            for row in batch.push_segment(id, done[s], tokens, &pages[s], None) {
                batch.samples.push(sample(row, recipe.vocabulary));
                rows.push((s, done[s]));
                done[s] += 1;
            }
        }
        let mut output = StepOutput::default();
        model.step(&batch, &mut output).unwrap();
        for (sample, (s, position)) in output.samples.iter().zip(rows) {
            let top = &output.top[sample.top.clone()];
            assert_eq!((top.len(), top[0].0), (recipe.vocabulary, sample.token));
            for &(token, logprob) in top {
                let error = f64::from(logprob) - expected[s][position][token as usize];
                assert!(
                    error.abs() < 5e-5,
                    "{recipe:?}: sequence {s}, position {position}, token {token}: off by {error}"
                );
            }
        }
    }
    assert_eq!(done, [70, 9]);
}

#[test]
fn llama_equals_the_naive_forward_pass() {
    let base = Recipe::default();
    assert_equals_naive(&base);
    assert_equals_naive(&Recipe { tied: true, ..base });
    assert_equals_naive(&Recipe { linear_scaling: Some(4.0), kv_heads: 3, ..base });
    assert_equals_naive(&Recipe { rope_factors: true, rotary_dims: 16, ..base });
}

#[test]
fn biases_head_norms_and_the_other_rotation() {
    let architecture = Architecture { name: LLAMA.name, ..QWEN2 };
    assert_equals_naive(&Recipe { architecture, ..Recipe::default() });
    let architecture = Architecture { name: LLAMA.name, ..QWEN3 };
    assert_equals_naive(&Recipe { architecture, ..Recipe::default() });
}

#[test]
fn the_probe_sees_every_layer_and_changes_nothing() {
    let recipe = Recipe::default();
    let file = TestFile::new(&recipe);
    let mut batch = StepBatch::default();
    batch.push_segment(SequenceId(1), 0, &[1, 2, 3], &[PageId(0)], None);
    batch.samples.push(sample(2, 3));
    let (mut plain, mut probed, mut seen) = (StepOutput::default(), StepOutput::default(), vec![]);
    load(&recipe, &file).unwrap().step(&batch, &mut plain).unwrap();
    let mut probe = |layer: usize, rows: &[f32]| {
        assert!(rows.iter().all(|v| v.is_finite()));
        seen.push((layer, rows.len()));
    };
    load(&recipe, &file).unwrap().step_probed(&batch, &mut probed, &mut probe).unwrap();
    assert_eq!(plain, probed);
    assert_eq!(seen, [(0, 3 * recipe.hidden), (1, 3 * recipe.hidden)]);
}

/// Runs one segment on one page and reports its last position.
fn step_on(
    model: &mut Model<ReferenceOps>,
    page: u32,
    start: usize,
    tokens: &[TokenId],
) -> StepOutput {
    let mut batch = StepBatch::default();
    batch.push_segment(SequenceId(1), start, tokens, &[PageId(page)], None);
    batch.samples.push(sample(tokens.len() - 1, 5));
    let mut output = StepOutput::default();
    model.step(&batch, &mut output).unwrap();
    output
}

#[test]
fn a_copied_page_continues_like_the_original() {
    let recipe = Recipe::default();
    let mut model = load(&recipe, &TestFile::new(&recipe)).unwrap();
    step_on(&mut model, 3, 0, &[1, 2, 3, 4]);
    step_on(&mut model, 6, 0, &[9; 40]);
    model.copy_page(PageId(3), PageId(6), 3).unwrap();
    let copied = step_on(&mut model, 6, 3, &[7]);
    assert_eq!(copied, step_on(&mut model, 3, 3, &[7]));
}

/// Runs one segment whose last `drafts` tokens are drafts, and samples them and the row before.
fn round(
    model: &mut Model<ReferenceOps>,
    start: usize,
    tokens: &[TokenId],
    drafts: usize,
) -> (usize, StepOutput) {
    let mut batch = StepBatch::default();
    batch.push_segment(SequenceId(1), start, tokens, &[PageId(4), PageId(1)], None);
    batch.segments[0].drafts = drafts;
    let first = tokens.len() - 1 - drafts;
    batch.samples.extend((first..tokens.len()).map(|row| sample(row, 5)));
    let mut output = StepOutput::default();
    model.step(&batch, &mut output).unwrap();
    (batch.accepted(&batch.segments[0], &output.samples), output)
}

/// What followed when the text last said its last token.
fn lookup(tokens: &[TokenId], count: usize) -> Vec<TokenId> {
    let Some((last, before)) = tokens.split_last() else { return Vec::new() };
    let place = before.iter().rposition(|token| token == last);
    place.map_or(Vec::new(), |place| tokens[place + 1..].iter().take(count).copied().collect())
}

#[test]
fn verified_drafts_give_the_bits_of_plain_decoding() {
    let recipe = Recipe::default();
    let file = TestFile::new(&recipe);
    // Across the edge of a page.
    let prompt: Vec<TokenId> = (0..58).map(|token| token % 7).collect();
    let wanted = 40;
    let exact = |output: &StepOutput, index: usize| {
        let sample = &output.samples[index];
        let top = output.top[sample.top.clone()].iter().map(|&(token, p)| (token, p.to_bits()));
        (sample.token, sample.logprob.to_bits(), top.collect::<Vec<_>>())
    };
    let mut model = load(&recipe, &file).unwrap();
    let mut tokens = prompt.clone();
    let mut plain = vec![exact(&round(&mut model, 0, &prompt, 0).1, 0)];
    while plain.len() < wanted {
        tokens.push(plain.last().unwrap().0);
        plain
            .push(exact(&round(&mut model, tokens.len() - 1, &tokens[tokens.len() - 1..], 0).1, 0));
    }
    let most = model.limits().drafts;
    assert!(most > 0);
    let mut model = load(&recipe, &file).unwrap();
    let mut tokens = prompt.clone();
    let mut found = vec![exact(&round(&mut model, 0, &prompt, 0).1, 0)];
    let (mut rounds, mut right, mut wrong) = (0, 0, 0);
    while found.len() < wanted {
        tokens.push(found.last().unwrap().0);
        let start = tokens.len() - 1;
        let mut drafts = lookup(&tokens, most);
        if rounds % 3 == 0 {
            // What comes, and then something else.
            drafts = plain[found.len()..].iter().take(4).map(|token| token.0).collect();
            drafts.push((rounds % recipe.vocabulary) as TokenId);
        }
        let segment = [&tokens[start..], &drafts].concat();
        let (accepted, output) = round(&mut model, start, &segment, drafts.len());
        tokens.extend(&drafts[..accepted]);
        found.extend((0..=accepted).map(|index| exact(&output, index)));
        (rounds, right, wrong) = (rounds + 1, right + accepted, wrong + drafts.len() - accepted);
    }
    assert_eq!(found[..wanted], plain[..]);
    assert!(right > 10 && wrong > 3, "{right} drafts were right, {wrong} wrong");
}

#[test]
fn refused_steps_change_nothing() {
    let recipe = Recipe::default();
    let mut model = load(&recipe, &TestFile::new(&recipe)).unwrap();
    let mut batch = StepBatch::default();
    batch.push_segment(SequenceId(1), 0, &[recipe.vocabulary as u32], &[PageId(0)], None);
    let mut output = StepOutput::default();
    let refused = model.step(&batch, &mut output);
    assert!(matches!(refused, Err(ExecutionError::Refused(_))), "{refused:?}");
    for (from, to, tokens) in [(0, 8, 1), (9, 0, 1), (0, 1, 65)] {
        let refused = model.copy_page(PageId(from), PageId(to), tokens);
        assert!(matches!(refused, Err(ExecutionError::Refused(_))), "{refused:?}");
    }
}

#[test]
fn progress_is_complete_and_the_ledger_adds_up() {
    let recipe = Recipe::default();
    let file = TestFile::new(&recipe);
    let (mut calls, mut last) = (0, None);
    let model = Model::load(&file, backend(), &OPTIONS, &mut |p| {
        assert_eq!(p.tensors_done, calls);
        calls += 1;
        last = Some((p.tensors_done, p.tensors, p.bytes_done, p.bytes));
    })
    .unwrap();
    let (done, all, bytes_done, bytes) = last.unwrap();
    assert_eq!((done, bytes_done), (all, bytes));
    assert_eq!(calls, all + 1);
    let packed = crate::packed_weight_bytes(&file, &backend(), true).unwrap();
    let pool = 8 * 64 * 2 * 2 * (recipe.kv_heads * recipe.head_dim * 4) as u64;
    assert_eq!(model.ledger().total_bytes(), packed + pool);
    assert_eq!(model.geometry().page_bytes as u64 * 8, pool);
    assert_eq!(model.geometry().native_context, 128);
}

#[test]
fn bad_files_are_refused_with_names_and_shapes() {
    let check = |spoil: fn(&mut TestFile), message: &str| {
        let recipe = Recipe::default();
        let mut file = TestFile::new(&recipe);
        spoil(&mut file);
        match Model::load(&file, backend(), &OPTIONS, &mut |_| ()) {
            Err(error) => assert_eq!(error.to_string(), message),
            Ok(_) => panic!("accepted, expected: {message}"),
        }
    };
    check(
        |f| f.set_text("general.architecture", "mamba"),
        "architecture \"mamba\" is not supported (supported: llama, qwen2, qwen3, qwen35, qwen35moe)",
    );
    check(
        |f| f.remove("blk.1.ffn_up.weight"),
        "tensor blk.1.ffn_up.weight is missing, expected with shape [160, 96]",
    );
    check(
        |f| f.matrix("blk.0.attn_k.weight", 48, 96),
        "tensor blk.0.attn_k.weight has shape [48, 96], expected [32, 96]",
    );
    check(
        |f| f.matrix("blk.0.attn_q.bias", 1, 96),
        "tensors that architecture llama does not know: blk.0.attn_q.bias [1, 96]",
    );
    check(
        |f| f.set_uint("llama.attention.head_count_kv", 2),
        "metadata llama.attention.head_count_kv: 3 query heads do not share 2 key/value heads \
         evenly",
    );
    check(
        |f| f.set_uint("llama.block_count", 0),
        "metadata llama.block_count: 0, expected a positive number",
    );
    check(
        |f| f.set_uint("llama.block_count", u32::MAX.into()),
        "metadata llama.block_count: 4294967295 layers in 21 tensors",
    );
    check(
        |f| f.set_text("llama.rope.scaling.type", "yarn"),
        "metadata llama.rope.scaling.type: \"yarn\" is not supported (supported: none, linear)",
    );
    check(
        |f| f.set_uint("llama.embedding_length", 1 << 32),
        "metadata llama.embedding_length: 4294967296 is too large",
    );
    check(
        |f| f.set_uint("llama.expert_count", 8),
        "metadata llama.expert_count: mixture of experts is not supported",
    );
    check(
        |f| f.set_text("llama.rope.freq_base", "high"),
        "metadata llama.rope.freq_base: Text(\"high\") is of another type",
    );
    check(
        |f| f.set_float("llama.attention.layer_norm_rms_epsilon", f32::NAN),
        "metadata llama.attention.layer_norm_rms_epsilon: NaN, expected a positive number",
    );
    check(
        |f| f.set_array("tokenizer.ggml.tokens", 78),
        "metadata tokenizer.ggml.tokens: 78 tokens, token_embd.weight has 77 rows",
    );
    check(|f| f.forget("llama.context_length"), "metadata llama.context_length: missing");
}
