//! Random numbers from a seed: SplitMix64. Each session, message and upstream stage has its own stream, so that its
//! numbers do not depend on the order in which threads run.

#[derive(Clone)]
pub struct Random(u64);

impl Random {
    /// Returns the stream of random numbers of this seed that has these numbers as its name.
    pub fn new(seed: u64, names: &[u64]) -> Self {
        let mut random = Self(seed);
        for name in names {
            random.0 = random.next() ^ name.wrapping_mul(0xD134_2543_DE82_EF95);
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `end - 1`; `end` is at least 1.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns true in `cases` of a thousand cases.
    pub fn per_mille(&mut self, cases: u64) -> bool {
        self.below(1000) < cases
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}
