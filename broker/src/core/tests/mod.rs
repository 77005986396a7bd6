//! The core, driven by hand.

mod bench;
mod garbage;
mod limits;
mod pieces;
mod publishing;
mod segments;
