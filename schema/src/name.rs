//! Names of topics.

use std::fmt;

use crate::limits::TOPIC_NAME_MAX;

/// A topic's name: 1 to 249 of `A-Z a-z 0-9 . _ - /`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicName(Box<str>);

/// Why a name is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Nothing.
    #[error("a topic name must not be empty")]
    Empty,
    /// Too long.
    #[error("a topic name has at most {TOPIC_NAME_MAX} bytes, this one has {len}")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// Something else than a letter, digit or one of `._-/`.
    #[error("a topic name is made of letters, digits and `._-/`; {character:?} at byte {at} is none of them")]
    Character {
        /// The character.
        character: char,
        /// Where it begins.
        at: usize,
    },
}

impl TopicName {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// Why it is not a topic name.
    pub fn new(name: &str) -> Result<Self, NameError> {
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if name.len() > TOPIC_NAME_MAX {
            return Err(NameError::TooLong { len: name.len() });
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
        match name.char_indices().find(|(_, c)| !allowed(*c)) {
            Some((at, character)) => Err(NameError::Character { character, at }),
            None => Ok(Self(name.into())),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for TopicName {
    type Err = NameError;
    fn from_str(name: &str) -> Result<Self, NameError> {
        Self::new(name)
    }
}

impl TryFrom<&str> for TopicName {
    type Error = NameError;
    fn try_from(name: &str) -> Result<Self, NameError> {
        Self::new(name)
    }
}

impl AsRef<str> for TopicName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_passes_and_one_byte_more_does_not() {
        let longest = "t".repeat(TOPIC_NAME_MAX);
        assert_eq!(TopicName::new(&longest).unwrap().as_str(), longest);
        let longer = "t".repeat(TOPIC_NAME_MAX + 1);
        assert_eq!(TopicName::new(&longer), Err(NameError::TooLong { len: 250 }));
        assert_eq!(TopicName::new(""), Err(NameError::Empty));
    }

    #[test]
    fn a_foreign_character_is_named_with_its_place() {
        assert!(TopicName::new("plant-7/line_2.Temperature").is_ok());
        assert_eq!(TopicName::new("a b"), Err(NameError::Character { character: ' ', at: 1 }));
        assert_eq!(TopicName::new("grün"), Err(NameError::Character { character: 'ü', at: 2 }));
    }
}
