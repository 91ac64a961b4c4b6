//! The body of a manifest of version 2 (formats-spec/container.md): a table of named sections with fields and records.

use super::{ChunkEntry, Codec, Manifest, PartOf, Partition, Refusal, check, check_cover};
use crate::chunk::Version;
use crate::format::{
    FIBER_LENGTHS, FormatRecord, Formats, GROUP_SIZES, Layout, PRIVATE_CODE, PartitionStatistics,
};
use crate::shape::{ModeOrder, ORDER_MAX, Shape};
use crate::store::labels::{LabelFile, LabelKind, ModesInfo, NAME_BYTES_MAX};

/// Bytes of a section's name.
const NAME_BYTES: usize = 12;
/// Bytes of the table's head and of an entry's name.
const TABLE_AT: usize = 8;
const ENTRY_BYTES: usize = 32;
/// The most sections.
const SECTIONS_MAX: usize = 65536;
/// The alignment of offsets.
const ALIGN: usize = 8;
/// The flag of a section that every reader must understand.
const CRITICAL: u32 = 1;
/// The most partitions.
const PARTITIONS_MAX: usize = 65536;

/// Bytes of records.
const PARTITION_BYTES: usize = 64;
const CHUNK_BYTES: usize = 144;
const MODE_BYTES: usize = 40;

/// The sections, sorted by name, and whether they are critical.
const SECTIONS: [(&str, bool); 8] = [
    ("chunks", true),
    ("modes", false),
    ("parameters", true),
    ("part", true),
    ("partitions", true),
    ("statistics", false),
    ("storage", true),
    ("tensor", true),
];

/// Writes fields one after the other.
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn u32(&mut self, field: u32) -> &mut Self {
        self.0.extend(field.to_le_bytes());
        self
    }

    fn u64(&mut self, field: u64) -> &mut Self {
        self.0.extend(field.to_le_bytes());
        self
    }

    fn f64(&mut self, field: f64) -> &mut Self {
        self.u64(field.to_bits())
    }

    fn u64s(&mut self, fields: impl IntoIterator<Item = u64>) {
        self.0.extend(fields.into_iter().flat_map(u64::to_le_bytes));
    }
}

/// Reads fields one after the other. The caller checks a section's length first.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        bytes
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let bytes = self.bytes(N);
        std::array::from_fn(|i| bytes[i])
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    fn f64(&mut self) -> f64 {
        f64::from_bits(self.u64())
    }

    fn u32s<const N: usize>(&mut self) -> [u32; N] {
        std::array::from_fn(|_| self.u32())
    }

    fn u64s<const N: usize>(&mut self) -> [u64; N] {
        std::array::from_fn(|_| self.u64())
    }

    /// Fails unless the next field is zero.
    fn reserved(&mut self, bytes: usize) -> Result<(), &'static str> {
        check(self.bytes(bytes).iter().all(|&b| b == 0), "a reserved field")
    }
}

/// Encodes the body of a manifest.
pub(super) fn encode(manifest: &Manifest) -> Vec<u8> {
    let mut parameters = Vec::new();
    let mut partitions = Fields::default();
    for partition in &manifest.partitions {
        let record = partition.format.record();
        let level = |l: usize| record.levels.as_ref().and_then(|levels| levels.modes().get(l)).copied();
        partitions.u32(record.code).u32(record.layout.0.into()).u32(partition.targets).u32(partition.covers);
        partitions.u64(partition.chunks).u64(partition.nnz).u64(partition.hash.unwrap_or(0));
        partitions.0.extend((0..ORDER_MAX).map(|l| level(l).unwrap_or(u8::MAX)));
        partitions.u64(parameters.len() as u64).u64(record.parameters.len() as u64);
        parameters.extend(record.parameters);
    }
    let sections: Vec<_> = SECTIONS
        .into_iter()
        .filter_map(|(name, critical)| {
            let bytes = match name {
                "chunks" => chunks(&manifest.chunks),
                "parameters" => std::mem::take(&mut parameters),
                "modes" => modes(manifest.modes.as_ref()?),
                "part" => part(manifest.part.as_ref()?),
                "partitions" => std::mem::take(&mut partitions.0),
                "statistics" => statistics(manifest)?,
                "storage" => storage(manifest),
                "tensor" => tensor(manifest),
                _ => return None,
            };
            Some((name, critical, bytes))
        })
        .collect();
    assemble(&sections)
}

/// Assembles a body from sections.
fn assemble(sections: &[(&str, bool, Vec<u8>)]) -> Vec<u8> {
    let mut table = Fields::default();
    table.u32(u32::try_from(sections.len()).expect("few sections")).u32(0);
    let mut end = TABLE_AT + ENTRY_BYTES * sections.len();
    for (name, critical, bytes) in sections {
        table.0.extend_from_slice(name.as_bytes());
        table.0.resize(table.0.len() + NAME_BYTES - name.len(), 0);
        table.u32(u32::from(*critical)).u64(end as u64).u64(bytes.len() as u64);
        end = (end + bytes.len()).next_multiple_of(ALIGN);
    }
    let mut body = table.0;
    body.reserve(end - body.len());
    for (_, _, bytes) in sections {
        body.extend_from_slice(bytes);
        body.resize(body.len().next_multiple_of(ALIGN), 0);
    }
    body
}

fn tensor(manifest: &Manifest) -> Vec<u8> {
    let mut out = Fields::default();
    let order = u32::try_from(manifest.shape.order()).expect("at most 8 modes");
    out.u32(order).u32(manifest.may_repeat.into()).u64(manifest.nnz).u64(manifest.hash().unwrap_or(0));
    out.f64(manifest.sum_squares).f64(manifest.value_min).f64(manifest.value_max).u64(0);
    for (&dim, &bound) in manifest.shape.dims().iter().zip(&manifest.longest_row_bounds) {
        out.u32(dim).u32(0).u64(bound);
    }
    out.0
}

fn storage(manifest: &Manifest) -> Vec<u8> {
    let mut out = Fields::default();
    let level = manifest.codec.level().unwrap_or(0);
    out.u32(manifest.codec.code().into()).u32(level.cast_unsigned()).u64(manifest.chunk_bytes).u64(0);
    out.0
}

fn chunks(entries: &[ChunkEntry]) -> Vec<u8> {
    let mut out = Fields(Vec::with_capacity(CHUNK_BYTES * entries.len()));
    for entry in entries {
        out.u64(entry.first_nonzero).u64(entry.nnz).u64(entry.file_bytes).u64(entry.image_bytes);
        out.u64(entry.payload_checksum);
        out.u64s(entry.first_linear.into_iter().chain(entry.last_linear));
        out.0.extend(entry.row_low.into_iter().chain(entry.row_high).flat_map(u32::to_le_bytes));
        out.u32(entry.value_encoding.unwrap_or(0).into()).u32(0);
    }
    out.0
}

fn part(part: &PartOf) -> Vec<u8> {
    let mut out = Fields::default();
    out.u32(part.number).u32(part.parts).u64(part.nnz).u64(part.hash);
    out.u64s(part.from.into_iter().chain(part.to));
    out.0
}

/// `None` if no partition has statistics.
fn statistics(manifest: &Manifest) -> Option<Vec<u8>> {
    let mut out = Fields::default();
    for partition in &manifest.partitions {
        let statistics = partition.statistics.as_ref()?;
        out.u64(statistics.sampled);
        let counts = statistics.nodes.iter().chain(&statistics.fiber_lengths);
        out.u64s(counts.chain(statistics.distinct.iter().flatten()).copied());
    }
    Some(out.0)
}

/// The sections of a body, in the order of [`SECTIONS`].
fn sections(body: &[u8]) -> Result<[Option<&[u8]>; SECTIONS.len()], Refusal> {
    const WRONG: Refusal = Refusal::Corrupt("manifest-sections", "the table of sections");
    let check = |holds: bool, wrong: Refusal| if holds { Ok(()) } else { Err(wrong) };
    let head = body.get(..TABLE_AT).ok_or(WRONG)?;
    let mut head = Cursor(head);
    let count = head.u32() as usize;
    check((1..=SECTIONS_MAX).contains(&count) && head.u32() == 0, WRONG)?;
    let mut end = TABLE_AT + ENTRY_BYTES * count;
    let table = body.get(TABLE_AT..end).ok_or(WRONG)?;
    let mut found = [None; SECTIONS.len()];
    let (mut last, mut unknown) = ([0; NAME_BYTES], None);
    for entry in table.chunks_exact(ENTRY_BYTES) {
        let mut entry = Cursor(entry);
        let (name, flags, offset, length) =
            (entry.array::<NAME_BYTES>(), entry.u32(), entry.u64(), entry.u64());
        let letters = name.iter().take_while(|&&b| b != 0).count();
        let is_letter = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
        let named = letters > 0 && name[..letters].iter().all(is_letter);
        check(named && name[letters..].iter().all(|&b| b == 0) && name > last, WRONG)?;
        check(flags & !CRITICAL == 0 && offset == end as u64, WRONG)?;
        let length = usize::try_from(length).map_err(|_| WRONG)?;
        let section = body.get(end..).and_then(|rest| rest.get(..length)).ok_or(WRONG)?;
        let gap = (end + length)..(end + length).next_multiple_of(ALIGN);
        check(body.get(gap.clone()).is_some_and(|gap| gap.iter().all(|&b| b == 0)), WRONG)?;
        (last, end) = (name, gap.end);
        let name = std::str::from_utf8(&name[..letters]).map_err(|_| WRONG)?;
        let critical = flags == CRITICAL;
        match SECTIONS.iter().position(|(known, _)| *known == name) {
            Some(at) => {
                check(SECTIONS[at].1 == critical, WRONG)?;
                found[at] = Some(section);
            }
            None if critical && unknown.is_none() => unknown = Some(name.to_owned()),
            None => {}
        }
    }
    check(end == body.len(), WRONG)?;
    let optional = ["modes", "part", "statistics"];
    let all =
        SECTIONS.iter().zip(&found).all(|((name, _), found)| found.is_some() || optional.contains(name));
    check(all, WRONG)?;
    match unknown {
        Some(name) => Err(Refusal::Unknown(
            "manifest-critical",
            format!("needs `{name}`, which this program does not know; use a newer one"),
        )),
        None => Ok(found),
    }
}

/// Reads and checks a body.
pub(super) fn decode(formats: &Formats, body: &[u8]) -> Result<Manifest, Refusal> {
    let found = sections(body)?;
    let [_, modes, _, part, _, statistics, ..] = found;
    let [chunks, _, parameters, _, partitions, _, storage, tensor] = found.map(Option::unwrap_or_default);
    let mut codes = partitions.chunks_exact(PARTITION_BYTES).map(|record| Cursor(record).u32());
    if let Some(code) = codes.find(|&code| !formats.is_known(code)) {
        let way = if code < PRIVATE_CODE {
            "which this program does not know; use a newer one"
        } else {
            "a private one: open it by an engine that registers it"
        };
        let what = format!("format {code}, {way}");
        return Err(Refusal::Unknown("manifest-format", what));
    }
    check(tensor.len() >= 4, "length of `tensor`")?;
    let mut fields = Cursor(tensor);
    let order = fields.u32() as usize;
    check((2..=ORDER_MAX).contains(&order), "field order")?;
    check(tensor.len() == 56 + 16 * order, "length of `tensor`")?;
    let duplicates = fields.u32();
    check(duplicates <= 1, "field duplicates")?;
    let (nnz, hash) = (fields.u64(), fields.u64());
    let [sum_squares, value_min, value_max] = std::array::from_fn(|_| fields.f64());
    fields.reserved(8)?;
    let (mut dims, mut longest_row_bounds) = (Vec::with_capacity(order), Vec::with_capacity(order));
    for _ in 0..order {
        dims.push(fields.u32().into());
        fields.reserved(4)?;
        longest_row_bounds.push(fields.u64());
    }
    let shape = Shape::new(&dims).map_err(|_| "dims")?;

    check(storage.len() == 24, "length of `storage`")?;
    let mut fields = Cursor(storage);
    let codec = Codec::from_codes(fields.u32(), fields.u32().cast_signed()).ok_or("unknown codec")?;
    let chunk_bytes = fields.u64();
    fields.reserved(8)?;

    check(chunks.len().is_multiple_of(CHUNK_BYTES), "length of `chunks`")?;
    let chunks: Vec<_> = chunks.chunks_exact(CHUNK_BYTES).map(entry).collect::<Result<_, _>>()?;
    let mut manifest = Manifest {
        version: Version::Two,
        codec,
        may_repeat: duplicates == 1,
        chunk_bytes,
        nnz,
        sum_squares,
        value_min,
        value_max,
        longest_row_bounds,
        partitions: read_partitions(formats, partitions, parameters, &shape)?,
        chunks,
        part: part.map(read_part).transpose()?,
        modes: None,
        shape,
    };
    manifest.check_common()?;
    check(manifest.part.as_ref().is_none_or(|part| part.nnz >= nnz), "field nnz of `part`")?;
    if let Some(section) = statistics {
        read_statistics(section, &mut manifest)?;
    }
    manifest.modes = modes.map(|section| read_modes(section, &manifest.shape)).transpose()?;
    check_cover(manifest.hash() == Some(hash), "hash")?;
    Ok(manifest)
}

fn read_partitions(
    formats: &Formats,
    records: &[u8],
    parameters: &[u8],
    shape: &Shape,
) -> Result<Vec<Partition>, Refusal> {
    let count = records.len() / PARTITION_BYTES;
    let fits = records.len().is_multiple_of(PARTITION_BYTES) && (1..=PARTITIONS_MAX).contains(&count);
    check(fits, "length of `partitions`")?;
    let mut end = 0;
    let partitions = records.chunks_exact(PARTITION_BYTES).map(|record| {
        let mut fields = Cursor(record);
        let [format, layout, targets, covers] = fields.u32s();
        let [chunks, nnz, hash] = fields.u64s();
        let levels = fields.array();
        let [at, length] = fields.u64s();
        check(at == end as u64, "parameters of a partition")?;
        let length = usize::try_from(length).map_err(|_| "parameters of a partition")?;
        let own = parameters.get(end..).and_then(|rest| rest.get(..length));
        let own = own.ok_or("parameters of a partition")?;
        end += length;
        check(chunks > 0, "field of a partition")?;
        check_cover(targets >> shape.order() == 0 && covers != 0, "field of a partition")?;
        let layout = u8::try_from(layout).map(Layout).map_err(|_| "unknown layout")?;
        let levels = read_levels(levels)?;
        let record = FormatRecord { code: format, layout, levels, parameters: own.to_vec() };
        let format = formats.read(&record, shape.order())?;
        Ok(Partition { format, targets, covers, chunks, nnz, hash: Some(hash), statistics: None })
    });
    let partitions = partitions.collect::<Result<Vec<_>, Refusal>>()?;
    check(end == parameters.len(), "length of `parameters`")?;
    Ok(partitions)
}

/// Reads the modes of levels, 255 after the last one. All 255 means an interleaved order.
fn read_levels(bytes: [u8; ORDER_MAX]) -> Result<Option<ModeOrder>, &'static str> {
    let there = bytes.iter().take_while(|&&mode| mode != u8::MAX).count();
    let (modes, beyond) = bytes.split_at(there);
    let modes: Vec<usize> = modes.iter().map(|&mode| mode.into()).collect();
    check(beyond.iter().all(|&mode| mode == u8::MAX), "modes of levels")?;
    match ModeOrder::new(&modes) {
        _ if modes.is_empty() => Ok(None),
        None => Err("modes of levels"),
        levels => Ok(levels),
    }
}

fn entry(record: &[u8]) -> Result<ChunkEntry, &'static str> {
    let mut fields = Cursor(record);
    let [first_nonzero, nnz, file_bytes, image_bytes, payload_checksum] = fields.u64s();
    let (first_linear, last_linear) = (fields.u64s(), fields.u64s());
    let (row_low, row_high) = (fields.u32s(), fields.u32s());
    let value_encoding = u8::try_from(fields.u32()).map_err(|_| "value encoding of a chunk")?;
    fields.reserved(4)?;
    Ok(ChunkEntry {
        first_nonzero,
        nnz,
        file_bytes,
        image_bytes,
        payload_checksum,
        first_linear,
        last_linear,
        row_low,
        row_high,
        value_encoding: Some(value_encoding),
    })
}

fn read_part(section: &[u8]) -> Result<PartOf, &'static str> {
    check(section.len() == 56, "length of `part`")?;
    let mut fields = Cursor(section);
    let [number, parts] = fields.u32s();
    let [nnz, hash] = fields.u64s();
    let (from, to) = (fields.u64s(), fields.u64s());
    check(number < parts, "field part")?;
    Ok(PartOf { number, parts, nnz, hash, from, to })
}

fn read_statistics(section: &[u8], manifest: &mut Manifest) -> Result<(), &'static str> {
    let order = manifest.shape.order();
    let bytes = 8 * (1 + ORDER_MAX + FIBER_LENGTHS + GROUP_SIZES * order);
    check(section.len() == bytes * manifest.partitions.len(), "length of `statistics`")?;
    for (partition, record) in manifest.partitions.iter_mut().zip(section.chunks_exact(bytes)) {
        let mut fields = Cursor(record);
        let (sampled, nodes, fiber_lengths) = (fields.u64(), fields.u64s(), fields.u64s());
        let distinct: Vec<[u64; GROUP_SIZES]> = (0..order).map(|_| fields.u64s()).collect();
        partition.statistics = Some(PartitionStatistics { sampled, nodes, fiber_lengths, distinct });
    }
    Ok(())
}

fn modes(info: &ModesInfo) -> Vec<u8> {
    let mut out = Fields::default();
    let length = |name: &str| u32::try_from(name.len()).unwrap_or(u32::MAX);
    out.u32(length(&info.value_name)).u32(0);
    for mode in &info.modes {
        let (blocks, file) = mode
            .file
            .map_or((0, [0; 3]), |file| (file.blocks, [file.bytes, file.table_checksum, file.text_bytes]));
        out.u32(mode.kind.code()).u32(mode.steps.into()).u32(length(&mode.name)).u32(blocks);
        out.u64s(file);
    }
    let names = info.modes.iter().map(|mode| &mode.name);
    std::iter::once(&info.value_name).chain(names).for_each(|name| out.0.extend_from_slice(name.as_bytes()));
    out.0
}

fn read_modes(section: &[u8], shape: &Shape) -> Result<ModesInfo, &'static str> {
    const WRONG: &str = "field of `modes`";
    let records = 8 + MODE_BYTES * shape.order();
    let (records, names) = section.split_at_checked(records).ok_or("length of `modes`")?;
    let mut fields = Cursor(records);
    let mut lengths = vec![fields.u32()];
    fields.reserved(4).map_err(|_| WRONG)?;
    let mut info = ModesInfo::unnamed(shape.order());
    for (mode, &dim) in info.modes.iter_mut().zip(shape.dims()) {
        let [kind, steps, length, blocks] = fields.u32s();
        let [bytes, table_checksum, text_bytes] = fields.u64s();
        lengths.push(length);
        mode.kind = LabelKind::of_code(kind).ok_or(WRONG)?;
        mode.steps = steps == 1;
        let has_labels = mode.kind != LabelKind::None;
        check(steps <= u32::from(has_labels) && (blocks > 0) == has_labels && blocks <= dim, WRONG)?;
        // Entries of the table have 32 bytes.
        let fits = if has_labels {
            bytes / 32 >= u64::from(blocks)
        } else {
            [bytes, table_checksum, text_bytes] == [0; 3]
        };
        check(fits, WRONG)?;
        mode.file = has_labels.then_some(LabelFile { blocks, bytes, table_checksum, text_bytes });
    }
    let mut rest = names;
    let mut name = |length: u32| -> Result<String, &'static str> {
        let length = length as usize;
        check(length <= NAME_BYTES_MAX, WRONG)?;
        let (name, behind) = rest.split_at_checked(length).ok_or("length of `modes`")?;
        rest = behind;
        std::str::from_utf8(name).map(str::to_owned).map_err(|_| WRONG)
    };
    info.value_name = name(lengths[0])?;
    for (mode, &length) in info.modes.iter_mut().zip(&lengths[1..]) {
        mode.name = name(length)?;
    }
    check(rest.is_empty(), "length of `modes`")?;
    Ok(info)
}
