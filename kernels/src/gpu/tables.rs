//! A step's segments as kernels read them; mirrors gpu/tables.h.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use crate::device::{PAGE_TOKENS, Segment, Visibility};
use crate::error::DeviceError;
use crate::gpu::driver::{DevicePtr, Driver};
use crate::gpu::memory::DeviceMemory;

pub(crate) const NONE: u32 = u32::MAX;
const BASE: u32 = u32::MAX - 1;
const LEAF: u32 = u32::MAX - 2;
/// Saved states that a walk may need at a time; see [`levels_of`].
const MAX_SAVED_LEVELS: u32 = 8;
/// Tables are aligned so that none shares a line with another.
const ALIGN: usize = 128;

/// See gpu/tables.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Row {
    pub segment: u32,
    pub place: u32,
    pub slot: u32,
    pub seen_end: u32,
    pub path: u32,
    pub parent_row: u32,
    pub seen_first: u32,
}

/// A row that belongs to no segment.
const UNUSED: Row = Row {
    segment: NONE,
    place: 0,
    slot: 0,
    seen_end: 0,
    path: NONE,
    parent_row: NONE,
    seen_first: 0,
};

/// See gpu/tables.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct SegmentEntry {
    pub first_row: u32,
    pub num_rows: u32,
    pub committed_len: u32,
    pub first_position: u32,
    pub first_page: u32,
    pub state_index: u32,
    pub advance: u32,
    pub first_step: u32,
}

/// See gpu/tables.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Step {
    pub row: u32,
    pub load: u32,
    pub save: u32,
}

/// Device addresses of the tables, passed to kernels as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct TablePtrs {
    pub rows: DevicePtr,
    pub segments: DevicePtr,
    pub pages: DevicePtr,
    pub paths: DevicePtr,
    pub steps: DevicePtr,
}

/// Tables of a batch on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostTables {
    pub rows: Vec<Row>,
    pub segments: Vec<SegmentEntry>,
    pub pages: Vec<u32>,
    pub paths: Vec<u32>,
    pub steps: Vec<Step>,
}

impl HostTables {
    pub(crate) fn new(segments: &[Segment<'_>], visibility: Visibility) -> Self {
        let mut tables = Self::default();
        let num_rows = segments.iter().map(|s| s.first_row + s.parents.len()).max();
        tables.rows = vec![UNUSED; num_rows.unwrap_or(0)];
        for (number, segment) in segments.iter().enumerate() {
            tables.push(number as u32, segment, visibility);
        }
        tables
    }

    fn push(&mut self, number: u32, segment: &Segment<'_>, visibility: Visibility) {
        let nodes = segment.parents.len();
        let is_chain = (-1..).zip(segment.parents).all(|(i, &parent)| i == parent);
        let sees_all = visibility == Visibility::All;
        let mut depths = Vec::with_capacity(nodes);
        for (node, &parent) in segment.parents.iter().enumerate() {
            let parent_node = usize::try_from(parent).ok();
            let depth = parent_node.map_or(0, |parent: usize| depths[parent] + 1);
            depths.push(depth);
            let place = segment.committed_len + if sees_all { node } else { depth };
            let path = if is_chain || sees_all {
                NONE
            } else {
                let first = self.paths.len();
                self.paths.resize(first + depth + 1, 0);
                let mut at = Some(node);
                for entry in self.paths[first..].iter_mut().rev() {
                    let node = at.unwrap_or(0);
                    *entry = (segment.committed_len + node) as u32;
                    at = usize::try_from(segment.parents[node]).ok();
                }
                first as u32
            };
            let seen_end = if sees_all {
                segment.committed_len + nodes
            } else {
                place + 1
            };
            let seen_first = segment
                .window
                .map_or(0, |most| (place + 1).saturating_sub(most));
            self.rows[segment.first_row + node] = Row {
                segment: number,
                place: place as u32,
                slot: (segment.committed_len + node) as u32,
                seen_end: seen_end as u32,
                path,
                parent_row: parent_node.map_or(NONE, |parent| (segment.first_row + parent) as u32),
                seen_first: seen_first as u32,
            };
        }
        let used_pages = (segment.committed_len + nodes).div_ceil(PAGE_TOKENS);
        self.segments.push(SegmentEntry {
            first_row: segment.first_row as u32,
            num_rows: nodes as u32,
            committed_len: segment.committed_len as u32,
            first_position: segment.first_position as u32,
            first_page: self.pages.len() as u32,
            state_index: segment.state_index as u32,
            advance: u32::from(segment.advance),
            first_step: self.steps.len() as u32,
        });
        // A layer without keys has no pages.
        let pages = &segment.pages[..used_pages.min(segment.pages.len())];
        self.pages.extend_from_slice(pages);
        walk(segment, &mut self.steps);
    }

    /// All tables, in the order of [`TablePtrs`].
    pub(crate) fn words(&self) -> [&[u32]; 5] {
        [
            bytemuck::cast_slice(&self.rows),
            bytemuck::cast_slice(&self.segments),
            &self.pages,
            &self.paths,
            bytemuck::cast_slice(&self.steps),
        ]
    }

    fn parts(&self) -> [&[u8]; 5] {
        self.words().map(bytemuck::cast_slice)
    }

    /// The largest number of places that a row sees.
    pub(crate) fn most_seen(&self) -> usize {
        self.rows
            .iter()
            .map(|row| row.seen_end as usize)
            .max()
            .unwrap_or(0)
    }
}

/// Saved states that the walk of a tree of so many nodes may need at a time. The first takes a node above two others
/// that are no leaves, one more takes a node above two walks that need one less.
pub(crate) fn levels_of(nodes: u32) -> u32 {
    (nodes + 1)
        .checked_div(6)
        .and_then(u32::checked_ilog2)
        .map_or(0, |log| log + 1)
        .min(MAX_SAVED_LEVELS)
}

/// Depth first, leaves and then smaller subtrees first: a state is saved only where two children are no leaves, and what
/// is saved while a subtree is walked is never more than its size's logarithm.
fn walk(segment: &Segment<'_>, steps: &mut Vec<Step>) {
    let nodes = segment.parents.len();
    let row = |node: usize| (segment.first_row + node) as u32;
    let mut sizes = vec![1_usize; nodes];
    let mut children = vec![Vec::new(); nodes];
    let mut roots = Vec::new();
    for node in (0..nodes).rev() {
        match usize::try_from(segment.parents[node]) {
            Ok(parent) => {
                sizes[parent] += sizes[node];
                children[parent].push(node);
            }
            Err(_) => roots.push(node),
        }
    }
    // Node, what to load, and the first level that is free.
    let mut stack: Vec<(usize, u32, u32)> = roots.iter().map(|&root| (root, BASE, 0)).collect();
    while let Some((node, load, level)) = stack.pop() {
        let mut below = std::mem::take(&mut children[node]);
        below.sort_by_key(|&child| std::cmp::Reverse(sizes[child]));
        let inner = below.iter().filter(|&&child| sizes[child] > 1).count();
        let save = match inner {
            // Where states move along with the rows, the last one's is wanted.
            0 if below.is_empty() && !segment.advance => LEAF,
            0 | 1 => NONE,
            _ => level,
        };
        steps.push(Step {
            row: row(node),
            load,
            save,
        });
        assert!(
            inner < 2 || level < MAX_SAVED_LEVELS,
            "a tree of too many nodes"
        );
        // The stack turns the order round: the largest, pushed first, comes last and may take the level over. The
        // smallest that is no leaf finds its parent's state as it was left.
        for (i, child) in below.into_iter().enumerate() {
            let load = if i + 1 < inner { level } else { NONE };
            stack.push((child, load, if i == 0 { level } else { level + 1 }));
        }
    }
}

/// Tables on the device, at addresses that stay as long as there is room.
#[derive(Debug)]
pub(crate) struct DeviceTables {
    memory: DeviceMemory,
    /// Bytes of room for each table.
    room: [usize; 5],
    /// What is there.
    host: HostTables,
    bytes: Vec<u8>,
}

impl DeviceTables {
    pub(crate) fn new(driver: &Arc<dyn Driver>) -> Result<Self, DeviceError> {
        Ok(Self {
            memory: DeviceMemory::new(driver, 0)?,
            room: [0; 5],
            host: HostTables::default(),
            bytes: Vec::new(),
        })
    }

    /// Room for tables. Whether they moved for it: then there are none.
    pub(crate) fn reserve(
        &mut self,
        driver: &Arc<dyn Driver>,
        tables: &HostTables,
    ) -> Result<bool, DeviceError> {
        let parts = tables.parts();
        let mut pairs = parts.iter().zip(self.room);
        if self.memory.bytes() > 0 && pairs.all(|(part, room)| part.len() <= room) {
            return Ok(false);
        }
        let mut room = self.room;
        for (room, part) in room.iter_mut().zip(parts) {
            *room = (*room).max((2 * part.len()).next_multiple_of(ALIGN).max(4096));
        }
        self.memory = DeviceMemory::new(driver, room.iter().sum())?;
        self.room = room;
        self.host = HostTables::default();
        Ok(true)
    }

    /// Puts tables on the device, where there is room, unless they are there already.
    pub(crate) fn set(&mut self, tables: HostTables) {
        if tables == self.host {
            return;
        }
        self.bytes.resize(self.memory.bytes(), 0);
        for (at, part) in self.offsets().into_iter().zip(tables.parts()) {
            self.bytes[at..][..part.len()].copy_from_slice(part);
        }
        self.memory.write(0, &self.bytes);
        self.host = tables;
    }

    /// Words that there is room for in all of them together.
    pub(crate) fn room_words(&self) -> usize {
        self.memory.bytes() / size_of::<u32>()
    }

    /// How many of the pages of such tables are there already.
    pub(crate) fn known_pages(&self, tables: &HostTables) -> usize {
        let pairs = self.host.pages.iter().zip(&tables.pages);
        pairs.take_while(|(there, page)| there == page).count()
    }

    /// Takes note of tables that come to the device in another way.
    pub(crate) fn hold(&mut self, tables: HostTables) {
        self.host = tables;
    }

    pub(crate) fn host(&self) -> &HostTables {
        &self.host
    }

    fn offsets(&self) -> [usize; 5] {
        let mut at = 0;
        self.room.map(|room| {
            let first = at;
            at += room;
            first
        })
    }

    pub(crate) fn ptrs(&self) -> TablePtrs {
        let [rows, segments, pages, paths, steps] =
            self.offsets().map(|at| self.memory.ptr().add(at));
        TablePtrs {
            rows,
            segments,
            pages,
            paths,
            steps,
        }
    }
}

#[cfg(test)]
mod tests;
