//! Every operation of a device against plain loops, over all instruction sets of this machine.
//!
//! Three facts are held for each operation: it agrees with a reference that shares no code with the device, all
//! instruction sets give the same bits, and a row's bits do not depend on the rows that share its call.

mod attention;
mod commits;
mod data;
mod delta_net;
mod draft;
mod kept;
mod kv_types;
mod linear;
mod prompt;
mod reference;
mod rows;
mod steps;
mod top_k;
