//! Damaged GGUF and safetensors files: no panic, and no allocation beyond the stated bound.

use laneway_artifact::gguf::PARSE_BYTES_PER_FILE_BYTE;
use laneway_artifact::hf::Safetensors;
use laneway_artifact::hf::safetensors::PARSE_BYTES_PER_HEADER_BYTE;
use laneway_artifact::{Gguf, GgufWriter, Value};
use laneway_numerics::WeightFormat;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Counts live bytes and remembers the most there were.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: both calls go to the system allocator unchanged; the counters do not touch the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Room for what does not grow with the file: error texts, the test's own strings.
const FIXED_BYTES: usize = 16 << 10;

/// SplitMix64 (Steele et al. 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(5) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => bytes.truncate(at.max(1)),
            3 => {
                let end = (at + 8).min(bytes.len());
                bytes[at..end].fill(0xff);
            }
            _ => {
                let large = (random.next() >> random.below(64)).to_le_bytes();
                let end = (at + 8).min(bytes.len());
                bytes[at..end].copy_from_slice(&large[..end - at]);
            }
        }
    }
}

/// The counters are the process's, so tests take turns.
static TURN: Mutex<()> = Mutex::new(());

/// Parses damaged copies of `good`; `parse` gets one and must allocate at most `per_byte` times its
/// length.
fn survive(good: &[u8], per_byte: usize, parse: impl Fn(Vec<u8>)) {
    let started = Instant::now();
    let mut random = Random(1);
    let mut rounds = 0;
    // At least this many, so that a slow machine does not make the test empty.
    while rounds < 20_000 || started.elapsed() < Duration::from_secs(2) {
        rounds += 1;
        let mut bytes = good.to_vec();
        damage(&mut bytes, &mut random);
        let length = bytes.len();
        let before = LIVE.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        parse(bytes);
        let used = PEAK.load(Ordering::Relaxed) - before;
        let bound = per_byte * length + FIXED_BYTES;
        assert!(used <= bound, "{used} bytes for a file of {length}, bound {bound}");
    }
}

#[test]
fn damaged_gguf_files_neither_panic_nor_allocate_without_bound() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let good = GgufWriter::new()
        .with("general.architecture", Value::Text("llama".to_owned()))
        .with("general.alignment", Value::Unsigned(32))
        .with("tokens", Value::Texts((0..40).map(|i| format!("t{i}")).collect()))
        .with("empty", Value::Texts(vec![String::new(); 40]))
        .with("scores", Value::Floats(vec![0.5; 40]))
        .with("bools", Value::Bools(vec![true; 40]))
        .tensor("a", WeightFormat::Q4K, &[2, 256], vec![1; 288])
        .tensor("b", WeightFormat::F16, &[3, 5], vec![2; 30])
        .finish();
    assert!(Gguf::parse(good.clone(), "good").is_ok());
    survive(&good, PARSE_BYTES_PER_FILE_BYTE, |bytes| {
        let length = bytes.len();
        if let Ok(gguf) = Gguf::parse(bytes, "damaged") {
            assert!(gguf.tensors().all(|tensor| tensor.data.len() <= length));
        }
    });
}

#[test]
fn damaged_safetensors_files_neither_panic_nor_allocate_without_bound() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut entries = vec![r#""__metadata__":{"format":"pt"}"#.to_owned()];
    for i in 0..40 {
        let (start, end) = (i * 12, i * 12 + 12);
        entries.push(format!(
            r#""model.layers.{i}.weight":{{"dtype":"F16","shape":[2,3],"data_offsets":[{start},{end}]}}"#
        ));
    }
    let header = format!("{{{}}}", entries.join(","));
    let mut good = (header.len() as u64).to_le_bytes().to_vec();
    good.extend(header.as_bytes());
    good.resize(good.len() + 480, 1);
    assert!(Safetensors::parse(good.clone(), "good").is_ok());
    survive(&good, PARSE_BYTES_PER_HEADER_BYTE, |bytes| {
        let length = bytes.len();
        if let Ok(file) = Safetensors::parse(bytes, "damaged") {
            assert!(file.tensors().all(|tensor| tensor.data.len() <= length));
        }
    });
}
