//! Values that are copied often and changed hardly ever: copies share one until somebody changes
//! theirs.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value whose copies are one until one of them is changed. On the wire it is the value itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shared<T>(Arc<T>);

impl<T> From<T> for Shared<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl<I, T: FromIterator<I>> FromIterator<I> for Shared<T> {
    fn from_iter<A: IntoIterator<Item = I>>(items: A) -> Self {
        T::from_iter(items).into()
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

impl<T: Serialize> Serialize for Shared<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.as_ref().serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Shared<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_changes_leaves_the_others_alone() {
        let first = Shared::from(vec![1]);
        let mut second = first.clone();
        assert!(Arc::ptr_eq(&first.0, &second.0));
        second.push(2);
        assert_eq!((&*first, &*second), (&vec![1], &vec![1, 2]));
    }
}
