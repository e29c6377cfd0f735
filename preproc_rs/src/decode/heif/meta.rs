//! Items of a HEIF file (AVIF, HEIC): what they are, where their bytes lie, what is said about them.
//!
//! Nothing is collected: every question walks the boxes again, which are at most HEIF_MAX_ENTRIES long.

use super::boxes::{boxes, find, Kind, Reader};
use crate::limits::HEIF_MAX_ENTRIES;

pub struct Meta<'a> {
    file: &'a [u8],
    body: &'a [u8],
}

/// One property of an item.
#[derive(Clone, Copy)]
pub struct Property<'a> {
    pub kind: Kind,
    pub body: &'a [u8],
    /// Whoever does not know it must not show the item.
    pub essential: bool,
}

impl<'a> Meta<'a> {
    pub fn read(file: &'a [u8]) -> Option<Meta<'a>> {
        let mut body = Reader(find(file, b"meta")?);
        body.version()?;
        Some(Meta { file, body: body.0 })
    }

    fn full_box(&self, kind: &Kind) -> Option<(u64, u64, Reader<'a>)> {
        let mut reader = Reader(find(self.body, kind)?);
        let (version, flags) = reader.version()?;
        Some((version, flags, reader))
    }

    pub fn primary(&self) -> Option<u32> {
        let (version, _, mut reader) = self.full_box(b"pitm")?;
        reader.id(version > 0)
    }

    /// The type of an item: "av01", "hvc1", "grid" ...
    pub fn kind(&self, item: u32) -> Option<Kind> {
        let (version, _, mut reader) = self.full_box(b"iinf")?;
        reader.id(version > 0)?;
        for (kind, body) in boxes(reader.0).take(HEIF_MAX_ENTRIES) {
            let mut entry = Reader(body);
            let (version, _) = entry.version()?;
            if &kind == b"infe" && version >= 2 && entry.id(version > 2)? == item {
                entry.u16()?;
                return entry.bytes(4)?.try_into().ok();
            }
        }
        None
    }

    /// Items that `item` refers to in that way ("dimg": is made of), or, with `back`, that refer to it.
    pub fn references(&self, kind: &'a Kind, item: u32, back: bool) -> impl Iterator<Item = u32> + 'a {
        let found = self.full_box(b"iref");
        let wide = found.as_ref().is_some_and(|(version, ..)| *version > 0);
        let lists = boxes(found.map_or(&[], |(_, _, reader)| reader.0)).take(HEIF_MAX_ENTRIES);
        lists.filter(move |(k, _)| k == kind).flat_map(move |(_, body)| {
            let mut reader = Reader(body);
            let from = reader.id(wide);
            let count = reader.u16().unwrap_or(0);
            let to = (0..count).map_while(move |_| reader.id(wide));
            to.filter(move |to| if back { *to == item } else { from == Some(item) }).map_while(move |to| {
                if back {
                    from
                } else {
                    Some(to)
                }
            })
        })
    }

    /// Everything said about an item, in order.
    pub fn properties(&self, item: u32) -> impl Iterator<Item = Property<'a>> {
        let iprp = find(self.body, b"iprp").unwrap_or_default();
        let all = find(iprp, b"ipco").unwrap_or_default();
        let links = boxes(iprp).filter(|(kind, _)| kind == b"ipma").find_map(|(_, body)| links(body, item));
        let (wide, mut links) = links.unwrap_or((false, Reader(&[])));
        std::iter::from_fn(move || {
            let value = links.uint(if wide { 2 } else { 1 })?;
            let top = if wide { 0x8000 } else { 0x80 };
            Some((value & (top - 1), value & top != 0))
        })
        .filter_map(move |(index, essential)| {
            // Numbered from 1; 0 is none.
            let (kind, body) = boxes(all).take(HEIF_MAX_ENTRIES).nth((index as usize).checked_sub(1)?)?;
            Some(Property { kind, body, essential })
        })
    }

    /// An item's bytes, in pieces; None when they lie outside the file or in another item.
    pub fn pieces(&self, item: u32) -> Option<Vec<&'a [u8]>> {
        let (version, _, mut reader) = self.full_box(b"iloc")?;
        let sizes = reader.u16()? as usize;
        let [offset_size, length_size, base_size, index_size] = [12, 8, 4, 0].map(|shift| sizes >> shift & 15);
        let index_size = if version > 0 { index_size } else { 0 };
        if [offset_size, length_size, base_size, index_size].iter().any(|s| *s > 8) {
            return None;
        }
        let count = reader.id(version > 1)? as usize;
        for _ in 0..count.min(HEIF_MAX_ENTRIES) {
            let id = reader.id(version > 1)?;
            let method = if version > 0 { reader.u16()? & 15 } else { 0 };
            reader.u16()?; // another file, which is never opened
            let base = reader.uint(base_size)?;
            let extents = reader.u16()? as usize;
            if id != item {
                reader.bytes(extents * (index_size + offset_size + length_size))?;
                continue;
            }
            let source = match method {
                0 => self.file,
                1 => find(self.body, b"idat")?,
                _ => return None,
            };
            let mut pieces = Vec::new();
            pieces.try_reserve_exact(extents.min(HEIF_MAX_ENTRIES)).ok()?;
            for _ in 0..extents.min(HEIF_MAX_ENTRIES) {
                reader.uint(index_size)?;
                let from = usize::try_from(base.checked_add(reader.uint(offset_size)?)?).ok()?;
                let length = usize::try_from(reader.uint(length_size)?).ok()?;
                let end = if length == 0 { source.len() } else { from.checked_add(length)? };
                pieces.push(source.get(from..end)?);
            }
            return Some(pieces);
        }
        None
    }
}

/// The list of an item in an "ipma" box: are its entries wide, and the entries.
fn links(body: &[u8], item: u32) -> Option<(bool, Reader<'_>)> {
    let mut reader = Reader(body);
    let (version, flags) = reader.version()?;
    let wide = flags & 1 != 0;
    for _ in 0..(reader.u32()? as usize).min(HEIF_MAX_ENTRIES) {
        let id = reader.id(version > 0)?;
        let count = reader.uint(1)? as usize;
        let entries = reader.bytes(count * if wide { 2 } else { 1 })?;
        if id == item {
            return Some((wide, Reader(entries)));
        }
    }
    None
}
