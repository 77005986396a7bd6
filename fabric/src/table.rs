//! A table of objects behind generational ids.

/// An id that a [`Table`] can give out.
pub(crate) trait Id: Copy {
    fn new(index: u32, generation: u32) -> Self;
    fn parts(self) -> (u32, u32);
}

/// Owns objects and hands out ids; an id of a removed object finds nothing, for ever.
#[derive(Debug)]
pub(crate) struct Table<I, T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    len: usize,
    id: std::marker::PhantomData<I>,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    object: Option<T>,
}

impl<I: Id, T> Table<I, T> {
    pub(crate) const fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), len: 0, id: std::marker::PhantomData }
    }

    pub(crate) fn insert(&mut self, object: T) -> I {
        self.insert_with(|_| object)
    }

    /// Inserts what `make` builds, given the id that it will have.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(I) -> T) -> I {
        match self.try_insert_with(|id| Ok::<T, std::convert::Infallible>(make(id))) {
            Ok(id) => id,
            Err(never) => match never {},
        }
    }

    /// Inserts what `make` builds, given the id that it will have, unless that fails.
    pub(crate) fn try_insert_with<E>(&mut self, make: impl FnOnce(I) -> Result<T, E>) -> Result<I, E> {
        let index = match self.free.last() {
            Some(index) => *index,
            None => u32::try_from(self.entries.len()).expect("fewer than 2^32 objects are alive at once"),
        };
        let generation = self.entries.get(index as usize).map_or(0, |entry| entry.generation);
        let id = I::new(index, generation);
        let object = Some(make(id)?);
        match self.entries.get_mut(index as usize) {
            Some(entry) => {
                self.free.pop();
                entry.object = object;
            }
            None => self.entries.push(Entry { generation, object }),
        }
        self.len += 1;
        Ok(id)
    }

    pub(crate) fn get(&self, id: I) -> Option<&T> {
        let (index, generation) = id.parts();
        let entry = self.entries.get(index as usize)?;
        if entry.generation == generation { entry.object.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, id: I) -> Option<&mut T> {
        let (index, generation) = id.parts();
        let entry = self.entries.get_mut(index as usize)?;
        if entry.generation == generation { entry.object.as_mut() } else { None }
    }

    /// What is in a place now, whatever its generation.
    #[cfg(feature = "verbs")]
    pub(crate) fn id_in(&self, index: u32) -> Option<I> {
        let entry = self.entries.get(index as usize)?;
        entry.object.as_ref().map(|_| I::new(index, entry.generation))
    }

    pub(crate) fn remove(&mut self, id: I) -> Option<T> {
        let (index, generation) = id.parts();
        let entry = self.entries.get_mut(index as usize)?;
        if entry.generation != generation {
            return None;
        }
        let object = entry.object.take()?;
        self.len -= 1;
        // A place whose generations are used up is retired, so that no id is ever given twice.
        if let Some(next) = entry.generation.checked_add(1) {
            entry.generation = next;
            self.free.push(index);
        }
        Some(object)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| {
            entry.object.as_ref().map(|object| (I::new(index as u32, entry.generation), object))
        })
    }

    #[cfg(feature = "verbs")]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (I, &mut T)> {
        self.entries.iter_mut().enumerate().filter_map(|(index, entry)| {
            entry.object.as_mut().map(|object| (I::new(index as u32, entry.generation), object))
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LinkId;

    #[test]
    fn an_id_of_a_removed_object_finds_nothing() {
        let mut table: Table<LinkId, &str> = Table::new();
        let first = table.insert("first");
        assert_eq!(table.remove(first), Some("first"));
        let second = table.insert("second");
        assert_eq!(second.index, first.index);
        assert_eq!(table.get(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get(second), Some(&"second"));
        assert_eq!(table.len(), 1);
    }
}
