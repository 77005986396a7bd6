//! The core, driven by hand.

mod bench;
mod publishing;
mod segments;
