//! Binding: a file's tensors, packed one by one in the order of use.

use crate::inventory::{
    EMBEDDING, HEAD, Inventory, JOINED_EXPERTS, NORM, ROPE_FACTORS, Use, layer_tensor,
};
use crate::rope::inverse_frequencies;
use crate::weights::{
    Attention, Delta, Dense, Draft, Layer, Mixer, Mlp, Projection, Sparse, Weights,
};
use crate::{Architecture, FileTensor, LoadError, ModelConfig, ModelFile};
use laneway_numerics::decode_row;
use laneway_ops::{MatrixSource, OpError, Ops};

/// How far a load has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress<'a> {
    /// Tensor that is bound next; empty at the end.
    pub tensor: &'a str,
    /// Tensors bound.
    pub tensors_done: usize,
    /// Tensors in all.
    pub tensors: usize,
    /// Bytes of the file that were bound.
    pub bytes_done: u64,
    /// Bytes of all tensors in the file that are used.
    pub bytes: u64,
}

/// What binding yields.
pub(crate) struct Bound<B: Ops> {
    pub weights: Weights<B>,
    pub inverse_frequencies: Vec<f32>,
    /// Bytes of all weights as the backend packed them.
    pub packed_bytes: u64,
}

/// Bytes that the weights of `file` will occupy on `backend`; nothing is loaded. Without
/// `drafting` a draft layer is left out.
///
/// # Errors
/// As [`Model::load`](crate::Model::load) for files that do not fit an architecture.
pub fn packed_weight_bytes<B: Ops>(
    file: &dyn ModelFile,
    backend: &B,
    drafting: bool,
) -> Result<u64, LoadError> {
    let architecture = crate::file::architecture(file)?;
    let config = ModelConfig::read(&architecture, file)?;
    Ok(Inventory::take(&architecture, &config, file)?.packed_bytes(backend, drafting))
}

/// Checks all tensors, then packs them in the order of use.
pub(crate) fn bind<B: Ops>(
    architecture: &Architecture,
    config: &ModelConfig,
    file: &dyn ModelFile,
    drafting: bool,
    backend: &mut B,
    progress: &mut dyn FnMut(LoadProgress<'_>),
) -> Result<Bound<B>, LoadError> {
    let inventory = Inventory::take(architecture, config, file)?;
    let packed_bytes = inventory.packed_bytes(backend, drafting);
    let mut binder = Binder {
        bytes: inventory.used(drafting).map(|(t, _)| t.bytes() as u64).sum(),
        tensors: inventory.used(drafting).count(),
        architecture,
        inventory: &inventory,
        backend,
        progress,
        tensors_done: 0,
        bytes_done: 0,
    };
    let factors = if inventory.rope_factors { Some(binder.values(ROPE_FACTORS)?) } else { None };
    let inverse_frequencies = inverse_frequencies(
        config.rope_base,
        config.rotary_dims,
        config.rope_scaling,
        factors.as_deref(),
    )?;
    let embedding = binder.matrix(EMBEDDING)?;
    let layers = (0..config.layers)
        .map(|layer| binder.layer(layer, config.has_attention(layer)))
        .collect::<Result<_, _>>()?;
    let norm = binder.vector(NORM)?;
    let head = if inventory.tied { None } else { Some(binder.matrix(HEAD)?) };
    let draft =
        if drafting && config.draft_layer { Some(binder.draft(config.layers)?) } else { None };
    binder.report("");
    let weights = Weights { embedding, layers, norm, head, draft };
    Ok(Bound { weights, inverse_frequencies, packed_bytes })
}

struct Binder<'a, B: Ops> {
    architecture: &'a Architecture,
    inventory: &'a Inventory<'a>,
    backend: &'a mut B,
    progress: &'a mut dyn FnMut(LoadProgress<'_>),
    tensors: usize,
    tensors_done: usize,
    bytes_done: u64,
    bytes: u64,
}

impl<B: Ops> Binder<'_, B> {
    fn report(&mut self, tensor: &str) {
        (self.progress)(LoadProgress {
            tensor,
            tensors_done: self.tensors_done,
            tensors: self.tensors,
            bytes_done: self.bytes_done,
            bytes: self.bytes,
        });
    }

    /// Reports and counts a tensor of the inventory while `bind` takes it.
    fn take<T>(
        &mut self,
        name: &str,
        bind: impl FnOnce(&mut B, &FileTensor<'_>, Use) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        self.report(name);
        let (tensor, used_as) = self.inventory.get(name);
        let bound = bind(self.backend, tensor, used_as)?;
        self.tensors_done += 1;
        self.bytes_done += tensor.bytes() as u64;
        Ok(bound)
    }

    fn matrix(&mut self, name: &str) -> Result<B::Matrix, LoadError> {
        self.take(name, |backend, tensor, _| {
            let (rows, cols) = tensor.rows_and_columns();
            pack(backend, tensor, rows, cols, &tensor.data())
        })
    }

    /// The two matrices that a tensor holds.
    fn matrices(&mut self, name: &str) -> Result<[B::Matrix; 2], LoadError> {
        self.take(name, |backend, tensor, used_as| {
            let (rows, cols) = tensor.rows_and_columns();
            let row_bytes = tensor.bytes() / rows;
            let (rows, cols, unit) = match used_as {
                Use::AlternatingRows(head) => (rows / 2, cols, head * row_bytes),
                _ => (rows, cols / 2, half_row(tensor, cols)?),
            };
            let mut parts = [Vec::new(), Vec::new()];
            for (i, unit) in tensor.data().chunks(unit).enumerate() {
                parts[i % 2].extend_from_slice(unit);
            }
            let [first, second] = parts;
            let first = pack(backend, tensor, rows, cols, &first)?;
            Ok([first, pack(backend, tensor, rows, cols, &second)?])
        })
    }

    fn values(&mut self, name: &str) -> Result<Vec<f32>, LoadError> {
        self.take(name, |_, tensor, _| {
            let mut values = vec![0.0; tensor.elements()];
            decode_row(tensor.format, &tensor.data(), &mut values).map_err(|e| {
                LoadError::TensorData { name: name.to_owned(), detail: e.to_string() }
            })?;
            tensor.reading.apply(&mut values);
            Ok(values)
        })
    }

    fn vector(&mut self, name: &str) -> Result<B::Vector, LoadError> {
        let values = self.values(name)?;
        self.backend.load_vector(&values).map_err(|e| refused(name, e))
    }

    fn layer(&mut self, layer: usize, attention: bool) -> Result<Layer<B>, LoadError> {
        let name = |name: &str| layer_tensor(layer, name);
        let mlp_norm = name(&format!("{}.weight", self.architecture.mlp_norm));
        Ok(Layer {
            norm: self.vector(&name("attn_norm.weight"))?,
            mixer: if attention {
                Mixer::Attention(self.attention(&name)?)
            } else {
                Mixer::Delta(self.delta(&name)?)
            },
            mlp_norm: self.vector(&mlp_norm)?,
            mlp: if self.architecture.sparse {
                Mlp::Sparse(self.sparse(&name)?)
            } else {
                Mlp::Dense(self.dense(&name, "")?)
            },
        })
    }

    fn dense(
        &mut self,
        name: &dyn Fn(&str) -> String,
        suffix: &str,
    ) -> Result<Dense<B>, LoadError> {
        let mut matrix = |part: &str| self.matrix(&name(&format!("{part}{suffix}.weight")));
        Ok(Dense { gate: matrix("ffn_gate")?, up: matrix("ffn_up")?, down: matrix("ffn_down")? })
    }

    fn sparse(&mut self, name: &dyn Fn(&str) -> String) -> Result<Sparse<B>, LoadError> {
        let [gate, up] = if self.inventory.joined_experts {
            self.matrices(&name(JOINED_EXPERTS))?
        } else {
            let gate = self.matrix(&name("ffn_gate_exps.weight"))?;
            [gate, self.matrix(&name("ffn_up_exps.weight"))?]
        };
        Ok(Sparse {
            router: self.matrix(&name("ffn_gate_inp.weight"))?,
            gate,
            up,
            down: self.matrix(&name("ffn_down_exps.weight"))?,
            shared: self.dense(name, "_shexp")?,
            shared_gate: self.matrix(&name("ffn_gate_inp_shexp.weight"))?,
        })
    }

    fn projection(
        &mut self,
        name: &dyn Fn(&str) -> String,
        part: &str,
    ) -> Result<Projection<B>, LoadError> {
        let matrix = self.matrix(&name(&format!("{part}.weight")))?;
        let bias = self.bias(name, part)?;
        Ok(Projection { matrix, bias })
    }

    fn bias(
        &mut self,
        name: &dyn Fn(&str) -> String,
        part: &str,
    ) -> Result<Option<B::Vector>, LoadError> {
        if self.architecture.qkv_bias {
            Ok(Some(self.vector(&name(&format!("{part}.bias")))?))
        } else {
            Ok(None)
        }
    }

    fn attention(&mut self, name: &dyn Fn(&str) -> String) -> Result<Attention<B>, LoadError> {
        let (q, gate) = if self.architecture.hybrid {
            let [matrix, gate] = self.matrices(&name("attn_q.weight"))?;
            (Projection { matrix, bias: self.bias(name, "attn_q")? }, Some(gate))
        } else {
            (self.projection(name, "attn_q")?, None)
        };
        Ok(Attention {
            q,
            gate,
            k: self.projection(name, "attn_k")?,
            v: self.projection(name, "attn_v")?,
            head_norms: if self.architecture.head_norm {
                let q_norm = self.vector(&name("attn_q_norm.weight"))?;
                Some((q_norm, self.vector(&name("attn_k_norm.weight"))?))
            } else {
                None
            },
            output: self.matrix(&name("attn_output.weight"))?,
        })
    }

    fn delta(&mut self, name: &dyn Fn(&str) -> String) -> Result<Delta<B>, LoadError> {
        Ok(Delta {
            qkv: self.matrix(&name("attn_qkv.weight"))?,
            gate: self.matrix(&name("attn_gate.weight"))?,
            alpha: self.matrix(&name("ssm_alpha.weight"))?,
            beta: self.matrix(&name("ssm_beta.weight"))?,
            conv: self.taps(&name("ssm_conv1d.weight"))?,
            rate: self.vector(&name("ssm_a"))?,
            bias: self.vector(&name("ssm_dt.bias"))?,
            norm: self.vector(&name("ssm_norm.weight"))?,
            output: self.matrix(&name("ssm_out.weight"))?,
        })
    }

    /// The convolution's weights, tap by tap; files have them channel by channel.
    fn taps(&mut self, name: &str) -> Result<B::Vector, LoadError> {
        let values = self.values(name)?;
        let kernel = self.inventory.get(name).0.shape[1];
        let tap = |tap: usize| values.iter().copied().skip(tap).step_by(kernel);
        let taps: Vec<f32> = (0..kernel).flat_map(tap).collect();
        self.backend.load_vector(&taps).map_err(|e| refused(name, e))
    }

    fn draft(&mut self, layer: usize) -> Result<Draft<B>, LoadError> {
        let name = |name: &str| layer_tensor(layer, &format!("nextn.{name}.weight"));
        let [from_token, from_hidden] = self.matrices(&name("eh_proj"))?;
        Ok(Draft {
            token_norm: self.vector(&name("enorm"))?,
            hidden_norm: self.vector(&name("hnorm"))?,
            from_token,
            from_hidden,
            layer: self.layer(layer, true)?,
            norm: self.vector(&name("shared_head_norm"))?,
        })
    }
}

/// Bytes of half a row.
fn half_row(tensor: &FileTensor<'_>, cols: usize) -> Result<usize, LoadError> {
    tensor.format.row_bytes(cols / 2).map_err(|e| LoadError::TensorData {
        name: tensor.name.to_owned(),
        detail: format!("{cols} columns cannot be halved: {e}"),
    })
}

fn pack<B: Ops>(
    backend: &mut B,
    tensor: &FileTensor<'_>,
    rows: usize,
    cols: usize,
    data: &[u8],
) -> Result<B::Matrix, LoadError> {
    let &FileTensor { name, format, .. } = tensor;
    let source = MatrixSource { name, format, rows, cols, data };
    backend.load_matrix(&source).map_err(|e| refused(name, e))
}

fn refused(name: &str, source: OpError) -> LoadError {
    LoadError::Backend { name: name.to_owned(), source }
}
