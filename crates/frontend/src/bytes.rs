//! The byte-level alphabet of GPT-2: every byte as a printable character.
//!
//! Printable Latin-1 bytes stand for themselves; the other 68 are numbered from U+0100 in order.

use std::collections::HashMap;

/// The character of each byte.
pub(crate) fn alphabet() -> [char; 256] {
    let mut next = 0x100u32;
    std::array::from_fn(|byte| {
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if printable {
            byte as u32
        } else {
            next += 1;
            next - 1
        };
        char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
}

/// Turns pieces of vocabulary back into bytes.
pub(crate) struct Decoder(HashMap<char, u8>);

impl Decoder {
    pub fn new() -> Self {
        let pairs = alphabet().into_iter().enumerate();
        Decoder(pairs.map(|(byte, character)| (character, byte as u8)).collect())
    }

    /// The bytes of a piece; `None` if it holds a character outside of the alphabet.
    pub fn bytes(&self, piece: &str) -> Option<Vec<u8>> {
        piece.chars().map(|character| self.0.get(&character).copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_one_to_one() {
        let decoder = Decoder::new();
        for (byte, character) in alphabet().into_iter().enumerate() {
            assert_eq!(decoder.bytes(&character.to_string()), Some(vec![byte as u8]));
        }
        assert_eq!(alphabet()[b' ' as usize], 'Ġ');
        assert_eq!(decoder.bytes("Ġa\u{4e00}"), None);
    }
}
