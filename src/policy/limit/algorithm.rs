//! Algorithms by which a limit counts.

/// Algorithm of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Ewma,
    TokenBucket,
    LeakyBucket,
}

impl Algorithm {
    pub const ALL: [Self; 3] = [Self::Ewma, Self::TokenBucket, Self::LeakyBucket];

    /// Returns the word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ewma => "ewma",
            Self::TokenBucket => "token-bucket",
            Self::LeakyBucket => "leaky-bucket",
        }
    }

    pub fn is_bucket(self) -> bool {
        self != Self::Ewma
    }
}
