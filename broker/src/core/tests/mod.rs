//! The core, driven by hand.

mod bench;
mod clients;
mod garbage;
mod limits;
mod memory;
mod pieces;
mod publishing;
mod segments;
