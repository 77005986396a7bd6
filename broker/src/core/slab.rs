//! A table whose places are used again, behind ids that carry a generation: an id that outlived its object finds nothing.

/// A place in a [`Slab`], and how often it had been used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl Place {
    /// The bits of a generation that fit into a tag beside its kind and the index.
    const GENERATION: u64 = 0x00ff_ffff;

    /// The place as the lower 56 bits of a tag. Generations are cut to 24 bits: a completion never outlives 16 million uses.
    pub(super) const fn tag(self) -> u64 {
        (self.generation as u64 & Self::GENERATION) << 32 | self.index as u64
    }
}

/// The table.
#[derive(Clone, Debug)]
pub(super) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    generation: u32,
    object: Option<T>,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }

    pub(super) fn insert(&mut self, object: T) -> Place {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, object: None });
            (self.entries.len() - 1) as u32
        });
        let entry = &mut self.entries[index as usize];
        entry.object = Some(object);
        Place { index, generation: entry.generation }
    }

    pub(super) fn get(&self, place: Place) -> Option<&T> {
        let entry = self.entries.get(place.index as usize)?;
        if entry.generation == place.generation { entry.object.as_ref() } else { None }
    }

    pub(super) fn get_mut(&mut self, place: Place) -> Option<&mut T> {
        let entry = self.entries.get_mut(place.index as usize)?;
        if entry.generation == place.generation { entry.object.as_mut() } else { None }
    }

    /// The place that a tag was made of, if its object is still there.
    pub(super) fn of_tag(&self, tag: u64) -> Option<Place> {
        let index = tag as u32;
        let entry = self.entries.get(index as usize)?;
        let place = Place { index, generation: entry.generation };
        let same = place.tag() == tag & (Place::GENERATION << 32 | u64::from(u32::MAX));
        (same && entry.object.is_some()).then_some(place)
    }

    pub(super) fn remove(&mut self, place: Place) -> Option<T> {
        let entry = self.entries.get_mut(place.index as usize)?;
        if entry.generation != place.generation {
            return None;
        }
        let object = entry.object.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(place.index);
        Some(object)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Place, &T)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| {
            let place = Place { index: index as u32, generation: entry.generation };
            entry.object.as_ref().map(|object| (place, object))
        })
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_of_a_removed_object_finds_nothing() {
        let mut slab = Slab::new();
        let first = slab.insert("first");
        assert_eq!(slab.of_tag(first.tag()), Some(first));
        assert_eq!(slab.remove(first), Some("first"));
        let second = slab.insert("second");
        assert_eq!((second.index, slab.len()), (first.index, 1));
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.of_tag(first.tag()), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&"second"));
    }
}
