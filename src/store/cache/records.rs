//! The records of a shard's budgets, one after the other in blocks of equal size.

/// Records of different lengths. An allocation for each record would leave gaps in the allocator's memory, because
/// records grow with the values that their budgets learn, and different threads create and drop them. A single
/// allocation for all records would leave larger gaps whenever it grows.
#[derive(Default)]
pub struct Records {
    /// Blocks of [`BLOCK`] octets. A record that is longer than a block has a block of its own.
    blocks: Vec<Vec<u8>>,
    /// Octets of the records that were not dropped.
    used: usize,
    /// Octets of the records that were dropped or replaced since the records were last packed.
    unused: usize,
    /// Buffer in which a new record is written. It is kept for reuse.
    draft: Vec<u8>,
}

/// Place of a record in [`Records`].
#[derive(Clone, Copy)]
pub struct Place {
    block: u32,
    begin: u16,
    length: u16,
}

impl Place {
    /// Returns the memory that the record takes, in octets, with its share of the memory that can be unused.
    pub fn octets(self) -> usize {
        self.length() + self.length() / UNUSED_DIVISOR
    }

    fn length(self) -> usize {
        usize::from(self.length)
    }
}

/// Octets of a block. The blocks have one size, so that the allocator can use a dropped block again.
const BLOCK: usize = 4096;

/// For each octet in use, one in this number of octets can be unused.
const UNUSED_DIVISOR: usize = 8;

impl Records {
    /// Returns a record.
    pub fn get(&self, place: Place) -> &[u8] {
        &self.blocks[place.block as usize][usize::from(place.begin)..][..place.length()]
    }

    /// Adds the record that `write` appends to the given buffer.
    pub fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Place {
        let draft = self.draft(|_, draft| write(draft));
        let place = append(&mut self.blocks, &draft);
        self.used += draft.len();
        self.draft = draft;
        place
    }

    /// Replaces a record by the record that `write` appends to the given buffer. `write` also gets the former record.
    pub fn replace(&mut self, place: Place, write: impl FnOnce(&[u8], &mut Vec<u8>)) -> Place {
        let draft = self.draft(|records, draft| write(records.get(place), draft));
        let place = if draft.len() == place.length() {
            self.blocks[place.block as usize][usize::from(place.begin)..][..draft.len()].copy_from_slice(&draft);
            place
        } else {
            self.drop(place);
            self.used += draft.len();
            append(&mut self.blocks, &draft)
        };
        self.draft = draft;
        place
    }

    /// Drops a record.
    pub fn drop(&mut self, place: Place) {
        self.used -= place.length();
        self.unused += place.length();
    }

    /// Returns whether so much memory is unused that the records should be packed. A block can be unused in any case, so
    /// that a few records are not packed all the time.
    pub fn is_loose(&self) -> bool {
        self.unused > BLOCK + self.used / UNUSED_DIVISOR
    }

    /// Moves the records at these places together, and changes the places accordingly. All other records were dropped.
    pub fn pack<'a>(&mut self, places: impl Iterator<Item = &'a mut Place>) {
        let mut packed = Vec::new();
        places.for_each(|place| *place = append(&mut packed, self.get(*place)));
        (self.blocks, self.unused) = (packed, 0);
    }

    /// Returns the buffer for a new record, with what `write` appends to it.
    fn draft(&mut self, write: impl FnOnce(&Self, &mut Vec<u8>)) -> Vec<u8> {
        let mut draft = std::mem::take(&mut self.draft);
        draft.clear();
        write(self, &mut draft);
        draft
    }
}

/// Appends a record to the last block, or to a new one.
fn append(blocks: &mut Vec<Vec<u8>>, record: &[u8]) -> Place {
    let has_room = |block: &Vec<u8>| block.capacity() - block.len() >= record.len();
    if !blocks.last().is_some_and(has_room) {
        blocks.push(Vec::with_capacity(record.len().max(BLOCK)));
    }
    let index = blocks.len() - 1;
    let block = &mut blocks[index];
    // The numbers fit, because a key has at most 8 KiB and a small filter some hundred octets.
    let place = Place { block: index as u32, begin: block.len() as u16, length: record.len() as u16 };
    block.extend_from_slice(record);
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long records leave much room at the ends of blocks. They must not be packed again and again because of it.
    #[test]
    fn packed_records_are_not_loose_and_keep_their_contents() {
        for length in [1, 100, 2_100, 5_000] {
            let mut records = Records::default();
            let record = |n: usize| vec![n as u8; length];
            let mut places: Vec<_> = (0..100).map(|n| records.add(|out| out.extend(record(n)))).collect();
            while !records.is_loose() {
                places[50] = records.replace(places[50], |former, out| out.extend([former, &[50]].concat()));
                places[50] = records.replace(places[50], |former, out| out.extend(&former[1..]));
            }
            records.pack(places.iter_mut());
            assert!(!records.is_loose(), "{length}");
            assert!(records.blocks.len() <= 100_usize.div_ceil((BLOCK / length).max(1)), "{length}");
            assert!(places.iter().enumerate().all(|(n, place)| records.get(*place) == record(n)), "{length}");
        }
    }
}
