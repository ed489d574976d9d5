//! Generation of a filter. While it has few values, it stores the exact values. Later it is a Bloom filter, which is at
//! first stored as a list of the positions of its set bits, and later as all bits.

use md5::{Digest as _, Md5};

/// Values of one generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generation {
    /// Size of all bits of the Bloom filter in octets. It is also set while the generation stores exact values.
    pub(super) size: u32,
    values: Values,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Values {
    /// Exact values, as long as they take less memory than all bits. They also take less than [`MAX_FEW`], so that a
    /// search is quick. Most users write to few recipients.
    Few(Vec<Value>),
    /// Ascending positions of the set bits, as long as the list takes less memory than all bits. A look-up gives the
    /// same result as in [`Values::Bits`].
    Sparse(Vec<u32>),
    Bits(Box<[u8]>),
}

impl Default for Values {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

/// Hash of a value, from which the value's bits in a filter of any size are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Value {
    hash: u32,
    step: u32,
}

const PROBES: u32 = 8;

/// Number after the size of a stored generation, if all bits follow. If the number is neither this value nor
/// [`SPARSE`], it is the number of exact values that follow.
const BITS: u32 = u32::MAX;
/// Number after the size of a stored generation, if the positions of its set bits follow.
const SPARSE: u32 = u32::MAX - 1;

/// Maximum memory for exact values, in octets.
const MAX_FEW: usize = 512;

/// Maximum size of a generation in octets, enough for half a million values. The size is limited because a decision may
/// have to copy the filter.
pub const MAX_OCTETS: usize = 1 << 20;

impl Value {
    /// Hashes a value, which the caller has normalized (addresses in lower case).
    pub fn of(text: &str) -> Self {
        let digest: [u8; 16] = Md5::digest(text.as_bytes()).into();
        let word = |at: usize| u32::from_le_bytes([digest[at], digest[at + 1], digest[at + 2], digest[at + 3]]);
        Self { hash: word(0), step: word(4) }
    }

    /// Returns the number of the shard, from 0, that has room for the value, among `shards` shards. The number depends on
    /// the highest bits of the hash, on which the value's bits in a small filter hardly depend.
    pub fn shard(self, shards: u32) -> u32 {
        ((u64::from(self.step) * u64::from(shards)) >> 32) as u32
    }

    /// Returns the hash in its stored form.
    pub fn to_bytes(self) -> [u8; 8] {
        (u64::from(self.step) << 32 | u64::from(self.hash)).to_le_bytes()
    }

    /// Reads a hash in its stored form.
    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        let halves = u64::from_le_bytes(bytes);
        Self { hash: halves as u32, step: (halves >> 32) as u32 }
    }

    /// Returns the value's bits in a filter of `size` octets. Each bit is given by the index of an octet and a mask
    /// within this octet.
    fn bits(self, size: usize) -> impl Iterator<Item = (usize, u8)> {
        // 32 bits are enough, because no filter is larger than MAX_OCTETS. A division of 64-bit numbers takes much
        // longer.
        let size = size as u32;
        (0..PROBES).map(move |n| {
            let at = self.hash.wrapping_add(self.step.wrapping_mul(n));
            ((at / 8 % size) as usize, 1 << (at % 8))
        })
    }
}

impl Generation {
    /// Returns an empty generation that stores bits from its first value on, instead of exact values.
    pub(super) fn bits(size: usize) -> Self {
        Self { size: size as u32, values: Values::Sparse(Vec::new()) }
    }

    pub(super) fn few(size: usize) -> Self {
        Self { size: size as u32, values: Values::default() }
    }

    pub(super) fn has(&self, value: Value) -> bool {
        let mut bits = value.bits(self.size as usize);
        match &self.values {
            Values::Few(values) => values.contains(&value),
            Values::Sparse(set) => bits.all(|bit| set.binary_search(&position(bit)).is_ok()),
            Values::Bits(octets) => bits.all(|(octet, mask)| octets[octet] & mask != 0),
        }
    }

    pub(super) fn add(&mut self, value: Value) {
        let size = self.size as usize;
        match &mut self.values {
            Values::Few(values) if values.contains(&value) => {}
            Values::Few(values) if (values.len() + 1) * size_of::<Value>() < MAX_FEW.min(size) => {
                values.push(value);
            }
            Values::Few(values) => {
                let mut full = Self::bits(size);
                values.iter().chain([&value]).for_each(|value| full.add(*value));
                *self = full;
            }
            Values::Sparse(set) => {
                let mut new: Vec<u32> = value.bits(size).map(position).collect();
                new.retain(|position| set.binary_search(position).is_err());
                new.sort_unstable();
                new.dedup();
                insert(set, &new);
                if !is_sparse(set.len(), size) {
                    self.values = Values::Bits(octets_of(set, size));
                }
            }
            Values::Bits(octets) => value.bits(size).for_each(|(octet, mask)| octets[octet] |= mask),
        }
    }

    pub(super) fn unite(&mut self, other: &Self) {
        if let Values::Few(values) = &other.values {
            return values.iter().for_each(|value| self.add(*value));
        }
        // Two Bloom filters can be united only if they have the same size. Otherwise the other filter's bits are
        // ignored.
        if self.size != other.size {
            return;
        }
        match &mut self.values {
            Values::Few(values) => {
                let few = std::mem::take(values);
                self.values = other.values.clone();
                few.into_iter().for_each(|value| self.add(value));
            }
            Values::Sparse(_) | Values::Bits(_) => {
                let mut octets = self.to_octets();
                octets.iter_mut().zip(other.to_octets()).for_each(|(octet, other)| *octet |= other);
                *self = Self::of_octets(&octets);
            }
        }
    }

    /// Returns all bits. If the generation stores exact values, no bit is set.
    fn to_octets(&self) -> Box<[u8]> {
        match &self.values {
            Values::Few(_) => octets_of(&[], self.size as usize),
            Values::Sparse(set) => octets_of(set, self.size as usize),
            Values::Bits(octets) => octets.clone(),
        }
    }

    /// Builds a generation from all bits. Chooses between a sparse and a dense form by the same rule as
    /// [`Generation::add`].
    fn of_octets(octets: &[u8]) -> Self {
        let set: usize = octets.iter().map(|octet| octet.count_ones() as usize).sum();
        let values = match is_sparse(set, octets.len()) {
            true => {
                let mut positions = Vec::with_capacity(set);
                let bits = octets.iter().enumerate().flat_map(|(at, octet)| {
                    let bits = (0..8).map(|bit| 1 << bit);
                    bits.filter(move |mask| octet & mask != 0).map(move |mask| position((at, mask)))
                });
                positions.extend(bits);
                Values::Sparse(positions)
            }
            false => Values::Bits(octets.into()),
        };
        Self { size: octets.len() as u32, values }
    }

    /// Returns the number of values. With bits it is an estimate from the share of set bits.
    pub(super) fn count(&self) -> usize {
        let set = match &self.values {
            Values::Few(values) => return values.len(),
            Values::Sparse(set) => set.len() as u32,
            Values::Bits(octets) => octets.iter().map(|octet| octet.count_ones()).sum(),
        };
        let bits = 8.0 * f64::from(self.size);
        // At least one bit counts as unset, because no number of values can be estimated if all bits are set.
        let share = (f64::from(set) / bits).min(1.0 - 1.0 / bits);
        (-bits / f64::from(PROBES) * (-share).ln_1p()) as usize
    }

    /// Returns whether the generation has as many values as it has room for. Fewer values than fill half of the bits are
    /// never full.
    pub(super) fn is_full(&self) -> bool {
        matches!(self.values, Values::Bits(_)) && self.count() * super::OCTETS_PER_VALUE >= self.size as usize
    }

    pub(super) fn octets(&self) -> usize {
        match &self.values {
            Values::Few(values) => values.capacity() * size_of::<Value>(),
            Values::Sparse(set) => set.capacity() * size_of::<u32>(),
            Values::Bits(octets) => octets.len(),
        }
    }

    /// Appends the stored form to `out`. It begins with the octets of all bits (u32). One of three forms follows. The
    /// first form is the number of exact values (u32) and the values. The second form is [`BITS`] (u32) and all bits.
    /// The third form is [`SPARSE`] (u32), the number of set bits (u32), and the distance of each set bit from the
    /// previous set bit (LEB128). All numbers are little-endian. Versions of Weir that do not know [`SPARSE`] treat a
    /// generation in the third form as damaged.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.size.to_le_bytes());
        match &self.values {
            Values::Few(values) => {
                out.extend_from_slice(&(values.len() as u32).to_le_bytes());
                values.iter().for_each(|value| out.extend(value.to_bytes()));
            }
            Values::Sparse(set) => {
                out.extend_from_slice(&SPARSE.to_le_bytes());
                out.extend_from_slice(&(set.len() as u32).to_le_bytes());
                let mut before = 0;
                for &position in set {
                    write_number(position - before, out);
                    before = position;
                }
            }
            Values::Bits(octets) => {
                out.extend_from_slice(&BITS.to_le_bytes());
                out.extend_from_slice(octets);
            }
        }
    }

    /// Reads a generation from the beginning of `bytes`, and removes it from `bytes`. `None` if the generation is
    /// damaged.
    pub fn read(bytes: &mut &[u8]) -> Option<Self> {
        let (size, count) = (word(bytes)?, word(bytes)?);
        if size as usize > MAX_OCTETS {
            return None;
        }
        match count {
            BITS => {
                let (octets, rest) = bytes.split_at_checked(size as usize)?;
                *bytes = rest;
                (!octets.is_empty()).then(|| Self::of_octets(octets))
            }
            SPARSE => Some(Self { size, values: Values::Sparse(read_sparse(bytes, size as usize)?) }),
            count => {
                let (mut these, rest) = bytes.split_at_checked(count as usize * size_of::<Value>())?;
                *bytes = rest;
                let mut values = Vec::with_capacity(count as usize);
                while let Some((value, rest)) = these.split_first_chunk() {
                    values.push(Value::from_bytes(*value));
                    these = rest;
                }
                Some(Self { size, values: Values::Few(values) })
            }
        }
    }
}

/// Returns the position of a bit in the filter. The position is below 2²³, because no filter is larger than
/// [`MAX_OCTETS`].
fn position((octet, mask): (usize, u8)) -> u32 {
    octet as u32 * 8 + mask.trailing_zeros()
}

/// Returns whether a list of `set` positions takes less memory than all bits of a filter of `size` octets.
fn is_sparse(set: usize, size: usize) -> bool {
    set * size_of::<u32>() < size
}

/// Returns all bits of a filter of `size` octets, with the bits at the positions in `set` set to 1.
fn octets_of(set: &[u32], size: usize) -> Box<[u8]> {
    let mut octets = vec![0; size].into_boxed_slice();
    set.iter().for_each(|position| octets[*position as usize / 8] |= 1 << (position % 8));
    octets
}

/// Inserts the ascending positions `new` into the ascending positions `set`. Moves each position at most once.
fn insert(set: &mut Vec<u32>, new: &[u32]) {
    let mut end = set.len();
    // Reserve no extra memory, because there are many small filters, and a later insertion moves positions in any case.
    set.reserve_exact(new.len());
    set.resize(end + new.len(), 0);
    for (n, position) in new.iter().enumerate().rev() {
        let at = set[..end].partition_point(|other| other < position);
        set.copy_within(at..end, at + n + 1);
        set[at + n] = *position;
        end = at;
    }
}

/// Reads the positions of a sparse generation. `None` if the positions are not ascending, if a position is beyond the
/// filter's bits, or if all bits would take less memory than the positions.
fn read_sparse(bytes: &mut &[u8], size: usize) -> Option<Vec<u32>> {
    let count = word(bytes)? as usize;
    if !is_sparse(count, size) {
        return None;
    }
    let mut set: Vec<u32> = Vec::with_capacity(count);
    for _ in 0..count {
        let distance = read_number(bytes)?;
        let position = set.last().map_or(Some(distance), |last| last.checked_add(distance).filter(|at| at > last))?;
        set.push(Some(position).filter(|position| (*position as usize) < 8 * size)?);
    }
    Some(set)
}

/// Writes a number in LEB128: seven bits per octet, the lowest bits first. Every octet except the last has the top bit
/// set.
fn write_number(mut number: u32, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads a number of at most 28 bits in LEB128 (see [`write_number`]).
fn read_number(bytes: &mut &[u8]) -> Option<u32> {
    let mut number = 0;
    for shift in [0, 7, 14, 21] {
        let (octet, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u32::from(octet & 0x7f) << shift;
        if octet & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn word(bytes: &mut &[u8]) -> Option<u32> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*head))
}

#[cfg(test)]
mod tests;
