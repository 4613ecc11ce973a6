//! Numbers that a seed repeats (xorshift64*), and fingerprints of bytes.

#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64, purpose: u64) -> Self {
        let mixed = (seed ^ purpose.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut rng = Self((mixed ^ (mixed >> 29)) | 1);
        for _ in 0..4 {
            rng.next();
        }
        rng
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// From 0 on, below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n.max(1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

/// Length and hash: what is compared of keys and values.
pub type Print = (u64, u64);

pub fn print(bytes: &[u8]) -> Print {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for piece in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..piece.len()].copy_from_slice(piece);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9fb2_1c65_1e98_df25);
        hash ^= hash >> 32;
    }
    (bytes.len() as u64, hash)
}
