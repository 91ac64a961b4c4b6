//! What can be changed about a store.

#![allow(
    clippy::unnecessary_wraps,
    reason = "a change says whether there was something to change; some always find it"
)]

use super::image::{Image, LEVELS, SHAPE, VALUES};
use super::{Choices, Lying, PAGE, u32_at};
use blco::internals::encoding::{LeafRule, TILE_NNZ};
use blco::internals::shape::Shape;
use blco::internals::store::{Codec, Format};

/// Nonzeros that a chunk is said to have at most: what is told of memory is not tested here.
const NNZ_MAX: i64 = 1 << 20;
/// A frame that decoders skip.
const SKIPPABLE: [u8; 12] = [0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, b'l', b'i', b'e', b's'];

type Change<C> = (&'static str, fn(&mut Lying, &[Lying], &mut C) -> Option<()>);

impl Lying {
    /// Changes one thing, where there is such a thing.
    pub fn change<C: Choices>(&mut self, bases: &[Lying], choices: &mut C) {
        let changes: [Change<C>; 17] = [
            ("a byte of a section", Self::section_byte),
            ("a byte of a section", Self::section_byte),
            ("a number of a section", Self::section_number),
            ("a number of a section", Self::section_number),
            ("a value", Self::value),
            ("a record of leaves", Self::leaf_record),
            ("a section's length", Self::section_length),
            ("a field of a header", Self::header_field),
            ("a section table", Self::section_table),
            ("nnz of a chunk", Self::nnz),
            ("statistics", Self::statistics),
            ("an entry of the manifest", Self::entry),
            ("what the store is", Self::kind),
            ("bytes of the archive", Self::archive_bytes),
            ("payload", Self::payload),
            ("chunks", Self::chunks),
            ("what is not signed", Self::unsigned),
        ];
        let which = choices.below(changes.len());
        let (name, change) = changes[which];
        let done = change(self, bases, choices).is_some();
        self.story.push(format!("{name}{}", if done { "" } else { ": not there" }));
    }

    /// Changes the sections of a chunk.
    fn image<C: Choices>(
        &mut self,
        choices: &mut C,
        change: impl FnOnce(&mut Image, &mut C) -> Option<()>,
    ) -> Option<()> {
        let n = choices.below(self.parts.len());
        let mut image = Image::of(&self.parts[n])?;
        change(&mut image, choices)?;
        let bytes = image.store(&mut self.parts[n]);
        self.manifest.chunks[n].image_bytes = bytes;
        Some(())
    }

    fn section_byte<C: Choices>(&mut self, _: &[Self], choices: &mut C) -> Option<()> {
        self.image(choices, |image, choices| {
            let which = choices.below(image.sections.len());
            let bytes = &mut image.sections[which].1;
            let at = choices.below(bytes.len());
            let byte = bytes.get_mut(at)?;
            *byte = match choices.below(4) {
                0 => 0,
                1 => 0xff,
                2 => u8::try_from(choices.below(256)).unwrap(),
                _ => *byte ^ 1 << choices.below(8),
            };
            Some(())
        })
    }

    fn section_number<C: Choices>(&mut self, _: &[Self], choices: &mut C) -> Option<()> {
        self.image(choices, |image, choices| {
            let which = choices.below(image.sections.len());
            let (kind, bytes) = &mut image.sections[which];
            // Heads and records come first, and matter more than what is packed.
            let near = if *kind == LEVELS { 400 } else { 160 };
            let room = if choices.one_in(2) { bytes.len().min(near) } else { bytes.len() };
            let at = 4 * choices.below(room / 4);
            let wide = at.is_multiple_of(8) && choices.one_in(3);
            let field = bytes.get_mut(at..at + if wide { 8 } else { 4 })?;
            let mut now = [0; 8];
            now[..field.len()].copy_from_slice(field);
            let changed = other(u64::from_le_bytes(now), choices).to_le_bytes();
            field.copy_from_slice(&changed[..field.len()]);
            Some(())
        })
    }

    fn value<C: Choices>(&mut self, _: &[Self], choices: &mut C) -> Option<()> {
        self.image(choices, |image, choices| {
            let values = image.section(VALUES)?;
            let at = 8 * choices.below(values.len() / 8);
            let special = [f64::NAN, f64::INFINITY, -0.0, 1e308, -1e-320, 2.0, f64::from(f32::MAX) * 2.0];
            let value = choices.pick(&special);
            values.get_mut(at..at + 8)?.copy_from_slice(&value.to_le_bytes());
            Some(())
        })
    }

    /// A record of a tree's last levels: low, high, before, base or a width.
    fn leaf_record<C: Choices>(&mut self, _: &[Self], choices: &mut C) -> Option<()> {
        let order = self.manifest.shape.order();
        self.image(choices, |image, choices| {
            // (One that a change before has put there, or cut, may have no head.)
            let levels = image.section(LEVELS).filter(|levels| levels.len() >= 64)?;
            let tiles = |level: usize| u32_at(levels, 16 + 4 * level).div_ceil(512) as usize;
            let records = (0..order).map(tiles).sum::<usize>();
            let tile = records.checked_sub(1 + choices.below(tiles(order - 1) + 2))?;
            let at = 64 + 32 * tile + choices.pick(&[0, 4, 8, 12, 12, 16, 24]);
            let field = levels.get_mut(at..at + 4)?;
            let changed = other(u32_at(field, 0).into(), choices).to_le_bytes();
            field.copy_from_slice(&changed[..4]);
            Some(())
        })
    }

    fn section_length<C: Choices>(&mut self, _: &[Self], choices: &mut C) -> Option<()> {
        self.image(choices, |image, choices| {
            if image.sections.len() < 10 && choices.one_in(8) {
                // One that has no place there.
                let kind = u32::try_from(choices.below(11)).unwrap();
                image.sections.push((kind, vec![0; choices.below(2)]));
                image.sections.sort_by_key(|section| section.0);
                return Some(());
            }
            let which = choices.below(image.sections.len());
            let bytes = &mut image.sections[which].1;
            let by = choices.pick(&[1, 4, 8, 16, 32, 64, 128, 2048]);
            let length = if choices.one_in(2) { bytes.len().checked_sub(by)? } else { bytes.len() + by };
            bytes.resize(length, 0);
            Some(())
        })
    }

    fn header_field<C: Choices>(&mut self, _: &[Self], choices: &mut C) -> Option<()> {
        let n = choices.below(self.parts.len());
        let byte = u8::try_from(choices.below(8)).unwrap();
        let part = &mut self.parts[n];
        match choices.below(9) {
            7 => part.header[56] = byte,
            8 => part.header[60] ^= byte,
            0 => part.header[44] = byte,
            1 => part.header[45] = byte,
            2 | 3 => part.header[46] = byte,
            4 => part.header[47] ^= 1,
            5 => part.header[8 + choices.below(32)] ^= 1 << byte,
            _ => self.stored.push((n, u32::try_from(part.payload.len() + 128 * usize::from(byte)).unwrap())),
        }
        Some(())
    }

    fn section_table<C: Choices>(&mut self, _: &[Self], choices: &mut C) -> Option<()> {
        let n = choices.below(self.parts.len());
        let part = &mut self.parts[n];
        // The table, or how many entries it has.
        let at = if choices.one_in(8) { 64 } else { 128 + 4 * choices.below((part.header.len() - 128) / 4) };
        let now = u32_at(&part.header, at);
        let by = choices.pick(&[1, 4, 128, u32::MAX, 128u32.wrapping_neg()]);
        part.set(at, now.wrapping_add(by).to_le_bytes());
        Some(())
    }

    /// Other nonzeros by header and manifest, with the positions behind them.
    fn nnz<C: Choices>(&mut self, _: &[Self], choices: &mut C) -> Option<()> {
        let n = if choices.one_in(2) { self.parts.len() - 1 } else { choices.below(self.parts.len()) };
        let now = i64::from(u32_at(&self.parts[n].header, 32));
        let tile = i64::try_from(TILE_NNZ).unwrap();
        let most = i64::try_from(choices.below(20_000)).unwrap();
        let nnz = match choices.below(5) {
            0 => now - 1,
            1 => now - now % tile,
            2 => now + choices.pick(&[1, tile, -tile]),
            3 => now - most,
            _ => most,
        };
        let nnz = u32::try_from(nnz.clamp(0, NNZ_MAX)).unwrap();
        self.parts[n].set(32, nnz.to_le_bytes());
        self.manifest.chunks[n].nnz = nnz.into();
        self.renumber();
        Some(())
    }

    fn statistics<C: Choices>(&mut self, _: &[Self], choices: &mut C) -> Option<()> {
        let m = &mut self.manifest;
        let value = choices.pick(&[0.0, -0.0, 1.0, -1e300, f64::NAN, f64::INFINITY, 1e-300, 7.5]);
        let mode = choices.below(m.longest_row_bounds.len());
        let partition = &mut m.partitions[0];
        let statistics = partition.statistics.as_mut()?;
        let (at, size) = (choices.below(8), choices.below(8));
        match choices.below(9) {
            4 => partition.hash = Some(other(partition.hash?, choices)),
            5 => statistics.sampled = other(statistics.sampled, choices),
            6 => statistics.nodes[at] = other(statistics.nodes[at], choices),
            7 => statistics.fiber_lengths[at] = other(statistics.fiber_lengths[at], choices),
            8 => statistics.distinct[mode][size] = other(statistics.distinct[mode][size], choices),
            0 => m.sum_squares = value,
            1 => m.value_min = value,
            2 => m.value_max = value,
            _ => m.longest_row_bounds[mode] = other(m.longest_row_bounds[mode], choices),
        }
        Some(())
    }

    fn entry<C: Choices>(&mut self, _: &[Self], choices: &mut C) -> Option<()> {
        let n = choices.below(self.parts.len());
        let (half, mode) = (choices.below(2), choices.below(8));
        let entry = &mut self.manifest.chunks[n];
        let row = |now: u32, choices: &mut C| u32::try_from(other(now.into(), choices) % (1 << 32)).unwrap();
        match choices.below(8) {
            7 => entry.value_encoding = Some(u8::try_from(choices.below(8)).unwrap()),
            0 => entry.first_nonzero = other(entry.first_nonzero, choices),
            1 => entry.nnz = other(entry.nnz, choices),
            2 => entry.image_bytes = other(entry.image_bytes, choices),
            3 => entry.first_linear[half] = other(entry.first_linear[half], choices),
            4 => entry.last_linear[half] = other(entry.last_linear[half], choices),
            5 => entry.row_low[mode] = row(entry.row_low[mode], choices),
            _ => entry.row_high[mode] = row(entry.row_high[mode], choices),
        }
        Some(())
    }

    /// A field of the manifest that says what all chunks are; of trees, in their heads too.
    fn kind<C: Choices>(&mut self, _: &[Self], choices: &mut C) -> Option<()> {
        let m = &mut self.manifest;
        match choices.below(6) {
            0 => m.may_repeat = !m.may_repeat,
            1 => m.chunk_bytes = choices.pick(&[0, 65_535, 65_536, 65_664, 1 << 20, 1 << 30, 1 << 31]),
            2 => m.codec = choices.pick(&[Codec::None, Codec::Zstd(1), Codec::Zstd(22), Codec::Zstd(23)]),
            3 => m.nnz = other(m.nnz, choices),
            4 => {
                let mut dims: Vec<u64> = m.shape.dims().iter().map(|&d| d.into()).collect();
                let mode = choices.below(dims.len());
                dims[mode] = if choices.one_in(2) { dims[mode] - 1 } else { dims[mode] + 1 };
                m.shape = Shape::new(&dims).ok()?;
                let shape: Vec<u8> = m.shape.dims().iter().flat_map(|d| d.to_le_bytes()).collect();
                for part in &mut self.parts {
                    let mut image = Image::of(part)?;
                    image.section(SHAPE)?.clone_from(&shape);
                    image.store(part);
                }
            }
            _ => {
                let format = &mut m.partitions[0].format;
                let levels = format.tree_levels()?;
                let leaf = choices.pick(&[LeafRule::Csr, LeafRule::Ell, LeafRule::Auto]);
                *format = Format::hocfs(levels, leaf);
                let code = leaf as u32;
                for (part, entry) in self.parts.iter_mut().zip(&mut m.chunks) {
                    let mut image = Image::of(part)?;
                    image.section(LEVELS)?.get_mut(8..12)?.copy_from_slice(&code.to_le_bytes());
                    entry.image_bytes = image.store(part);
                }
            }
        }
        Some(())
    }

    fn archive_bytes<C: Choices>(&mut self, _: &[Self], choices: &mut C) -> Option<()> {
        for _ in 0..=choices.below(2) {
            // The tensor comes last, before it storage; the table of sections is first.
            let within = choices.pick(&[100, 140, 1 << 10, 1 << 20]);
            let at = choices.below(within);
            self.archive.push((at, 1 << choices.below(8)));
        }
        Some(())
    }

    /// Frames, where payloads are; bytes elsewhere.
    fn payload<C: Choices>(&mut self, _: &[Self], choices: &mut C) -> Option<()> {
        let n = choices.below(self.parts.len());
        let part = &mut self.parts[n];
        let payload = &mut part.payload;
        let (length, at) = (payload.len(), choices.below(payload.len()));
        match choices.below(9) {
            0 => payload.extend(SKIPPABLE),
            1 => drop(payload.splice(0..0, SKIPPABLE)),
            2 => payload.extend(zstd::bulk::compress(&[], 1).unwrap()),
            3 => drop(payload.splice(0..0, zstd::bulk::compress(&[], 1).unwrap())),
            4 => {
                let plain = zstd::bulk::decompress(payload, 1 << 22).ok()?;
                let (first, second) = plain.split_at(at.min(plain.len()));
                *payload = [first, second].map(|half| zstd::bulk::compress(half, 1).unwrap()).concat();
            }
            5 => {
                // Without the length of its contents, maybe with a checksum.
                let plain = zstd::bulk::decompress(payload, 1 << 22).ok()?;
                let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
                encoder.include_contentsize(false).unwrap();
                encoder.include_checksum(choices.one_in(2)).unwrap();
                std::io::Write::write_all(&mut encoder, &plain).unwrap();
                *payload = encoder.finish().unwrap();
            }
            6 => payload.truncate(at),
            7 => payload.extend(vec![0; 1 + choices.below(PAGE)]),
            _ => {
                let near = if choices.one_in(2) { length.min(16) } else { length };
                let at = choices.below(near);
                *payload.get_mut(at)? ^= 1 << choices.below(8);
            }
        }
        Some(())
    }

    /// Chunks in another order, twice, or of another store.
    fn chunks<C: Choices>(&mut self, bases: &[Self], choices: &mut C) -> Option<()> {
        let [a, b] = [(), ()].map(|()| choices.below(self.parts.len()));
        match choices.below(5) {
            0 => {
                self.parts.swap(a, b);
                self.manifest.chunks.swap(a, b);
            }
            1 => {
                self.parts.insert(a, self.parts[b].clone());
                self.manifest.chunks.insert(a, self.manifest.chunks[b].clone());
            }
            2 if self.parts.len() > 1 => {
                self.parts.remove(a);
                self.manifest.chunks.remove(a);
            }
            3 => {
                // The payload alone, under another header.
                self.parts[a].payload = self.parts[b].payload.clone();
            }
            _ => {
                let other = &bases[choices.below(bases.len())];
                let b = choices.below(other.parts.len());
                self.parts[a] = other.parts[b].clone();
                self.manifest.chunks[a] = other.manifest.chunks[b].clone();
            }
        }
        if !choices.one_in(8) {
            self.renumber();
        }
        Some(())
    }

    fn unsigned<C: Choices>(&mut self, _: &[Self], choices: &mut C) -> Option<()> {
        let file = choices.below(self.parts.len() + 1);
        if choices.one_in(3) {
            let by = isize::try_from(choices.pick(&[1, 64, 128, PAGE])).unwrap();
            self.resized.push((file, if choices.one_in(2) { by } else { -by }));
        } else {
            self.unsigned.push((file, choices.below(1 << 16), 1 << choices.below(8)));
        }
        Some(())
    }

    /// Numbers and positions of all chunks, in headers and manifest, from their nnz.
    fn renumber(&mut self) {
        let partitions = &mut self.manifest.partitions;
        for partition in partitions.iter_mut() {
            (partition.nnz, partition.chunks) = (0, 0);
        }
        let last = partitions.len() - 1;
        for (n, (part, entry)) in (0u32..).zip(self.parts.iter_mut().zip(&mut self.manifest.chunks)) {
            // A header may say anything.
            let partition = &mut partitions[(u32_at(&part.header, 60) as usize).min(last)];
            entry.first_nonzero = partition.nnz;
            part.set(12, n.to_le_bytes());
            part.set(24, partition.nnz.to_le_bytes());
            partition.nnz = partition.nnz.wrapping_add(entry.nnz);
            partition.chunks += 1;
        }
        self.manifest.nnz = partitions.iter().fold(0, |nnz, partition| nnz.wrapping_add(partition.nnz));
    }
}

/// Another number than `now`: near it, or at an end of what is possible.
fn other(now: u64, choices: &mut impl Choices) -> u64 {
    match choices.below(8) {
        0 => now.wrapping_add(1),
        1 => now.wrapping_sub(1),
        2 => 0,
        3 => now.wrapping_mul(2),
        4 => now.wrapping_add(512),
        5 => choices.pick(&[
            u64::MAX,
            i64::MAX as u64,
            i64::from(i32::MIN).cast_unsigned(),
            u32::MAX.into(),
            1 << 31,
            1 << 53,
        ]),
        6 => choices.below(64) as u64,
        _ => now ^ 1 << choices.below(64),
    }
}
