//! A table of objects behind ids with generations, like a device's: a place is used again, an id never is.

/// The objects of one kind that a simulated device holds.
#[derive(Debug)]
pub(crate) struct Table<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    /// Inserts an object and returns its index and generation.
    pub(crate) fn insert(&mut self, object: T) -> (u32, u32) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        place.1 = Some(object);
        (index, place.0)
    }

    pub(crate) fn get(&self, (index, generation): (u32, u32)) -> Option<&T> {
        self.places.get(index as usize).filter(|place| place.0 == generation)?.1.as_ref()
    }

    pub(crate) fn get_mut(&mut self, (index, generation): (u32, u32)) -> Option<&mut T> {
        self.places.get_mut(index as usize).filter(|place| place.0 == generation)?.1.as_mut()
    }

    pub(crate) fn remove(&mut self, (index, generation): (u32, u32)) -> Option<T> {
        let place = self.places.get_mut(index as usize).filter(|place| place.0 == generation)?;
        let object = place.1.take()?;
        place.0 += 1;
        self.free.push(index);
        Some(object)
    }

    /// Every object with its index and generation, in the order of the places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = ((u32, u32), &T)> {
        self.places.iter().enumerate().filter_map(|(index, (generation, object))| {
            object.as_ref().map(|object| ((index as u32, *generation), object))
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
