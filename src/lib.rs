//! Keyway.
