//! Recurrent layers: the shape of their state, and how far a slot's state goes.
//!
//! A slot keeps, for every layer, the state behind the tokens that are certain, and the inputs of
//! the drafts behind them. The next segment's start says how many of these were accepted; they are
//! taken in before its own rows. So a step reads and writes a state once, whatever was drafted,
//! and nothing has to be undone.

use laneway_execution::Segment;

/// Which key head a value head reads, where there are more value heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadSharing {
    /// Value heads that stand together share a key head (transformers' order of rows).
    Grouped,
    /// Key heads repeat over and over (llama.cpp's order of rows).
    Tiled,
}

/// Shape of a model's gated delta layers, and of the pool that keeps their state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaSpec {
    /// Gated delta layers.
    pub layers: usize,
    /// Heads of queries and of keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Elements of a query or key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// Rows that the convolution sees, its own included.
    pub kernel: usize,
    /// How value heads share key heads.
    pub sharing: HeadSharing,
    /// Sequences whose state is kept.
    pub slots: usize,
    /// Most drafts of a segment.
    pub drafts: usize,
}

impl DeltaSpec {
    /// Elements of all queries, and of all keys.
    #[must_use]
    pub const fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Elements of all values.
    #[must_use]
    pub const fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Elements of queries, keys and values of a row, in this order: what the convolution sees.
    #[must_use]
    pub const fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Elements of all delta matrices of a layer.
    #[must_use]
    pub const fn matrix_elements(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }

    /// Rows before its own that the convolution sees.
    #[must_use]
    pub const fn window(&self) -> usize {
        self.kernel - 1
    }

    /// Bytes of one sequence's state image: for each layer the rows before the position that the
    /// convolution sees, and the delta matrices, in f32.
    #[must_use]
    pub const fn image_bytes(&self) -> usize {
        let elements = self.window() * self.channels() + self.matrix_elements();
        self.layers * elements * size_of::<f32>()
    }

    /// The key head that a value head reads.
    #[must_use]
    pub const fn key_head(&self, value_head: usize) -> usize {
        match self.sharing {
            HeadSharing::Grouped => value_head / (self.value_heads / self.key_heads),
            HeadSharing::Tiled => value_head % self.key_heads,
        }
    }

    /// What is wrong with the sizes, if anything is.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let &DeltaSpec { key_heads, value_heads, key_dim, value_dim, kernel, .. } = self;
        if key_heads == 0 || value_heads == 0 || !value_heads.is_multiple_of(key_heads) {
            return Some(format!("{value_heads} value heads share {key_heads} key heads"));
        }
        if key_dim == 0 || value_dim == 0 || kernel == 0 {
            return Some(format!("heads of {key_dim} and {value_dim}, {kernel} taps"));
        }
        None
    }
}

/// How far the state of a layer in a slot goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frontier {
    /// Tokens that are in the state.
    pub certain: usize,
    /// Drafts behind them whose inputs are kept.
    pub pending: usize,
}

impl Frontier {
    /// Drafts that are accepted when the sequence goes on at `position`.
    ///
    /// # Errors
    /// What the slot holds instead.
    pub fn accepted(self, position: usize) -> Result<usize, String> {
        let Frontier { certain, pending } = self;
        match position.checked_sub(certain) {
            Some(accepted) if accepted <= pending => Ok(accepted),
            _ => Err(format!(
                "position {position}, the slot holds {certain} tokens and {pending} drafts"
            )),
        }
    }

    /// The same for a segment, whose sequence starts afresh at position 0.
    ///
    /// # Errors
    /// As [`Frontier::accepted`].
    pub fn before(self, segment: &Segment) -> Result<usize, String> {
        if segment.start == 0 { Ok(0) } else { self.accepted(segment.start) }
    }

    /// How far it goes behind a segment.
    #[must_use]
    pub fn behind(segment: &Segment) -> Self {
        let certain = segment.start + segment.rows.len() - segment.drafts;
        Frontier { certain, pending: segment.drafts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_starts_behind_certain_tokens_or_accepted_drafts() {
        let frontier = Frontier { certain: 10, pending: 3 };
        assert_eq!(frontier.accepted(10), Ok(0));
        assert_eq!(frontier.accepted(13), Ok(3));
        let error = "position 14, the slot holds 10 tokens and 3 drafts";
        assert_eq!(frontier.accepted(14), Err(error.to_owned()));
        assert!(frontier.accepted(9).is_err());
    }

    #[test]
    fn value_heads_share_key_heads() {
        let spec = DeltaSpec {
            layers: 1,
            key_heads: 2,
            value_heads: 6,
            key_dim: 8,
            value_dim: 16,
            kernel: 4,
            sharing: HeadSharing::Grouped,
            slots: 1,
            drafts: 0,
        };
        let heads = |spec: DeltaSpec| (0..6).map(|h| spec.key_head(h)).collect::<Vec<_>>();
        assert_eq!(heads(spec), [0, 0, 0, 1, 1, 1]);
        assert_eq!(heads(DeltaSpec { sharing: HeadSharing::Tiled, ..spec }), [0, 1, 0, 1, 0, 1]);
        assert_eq!((spec.channels(), spec.image_bytes()), (128, 4 * (3 * 128 + 6 * 8 * 16)));
        assert!(DeltaSpec { key_heads: 4, ..spec }.fault().is_some());
    }
}
