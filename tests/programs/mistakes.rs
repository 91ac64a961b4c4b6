//! The mistakes of a first hour. Each has a line of its own that says what, where and what to do; with the command that it asks for,
//! what the user wanted works.

use super::programs::shell;
use std::path::Path;

/// What somebody does wrong.
struct Mistake {
    /// A line for a shell.
    wrong: &'static str,
    /// What it prints: on standard error with exit status 2, or a note in the report with status 0. `…` stands for any text.
    says: &'static str,
    /// The line that the message asks for, which succeeds.
    mended: &'static str,
}

const fn mistake(wrong: &'static str, says: &'static str, mended: &'static str) -> Mistake {
    Mistake { wrong, says, mended }
}

/// What every mistake finds there.
const GIVEN: &str = "printf '1 2 3 4.5\\n3 1 1 -1\\n2 3 4 0\\n2 2 2 7\\n' > t.tns
    printf 'user,title,stars\\nann,Heat,4\\nbob,Alien,5\\nann,Alien,3\\nbob,Heat,\\n' > ratings.csv
    blco-pack -q t.tns -o t.blco
    blco-run t.blco --rank 4 --output F";

/// Of files that cannot be read.
const FILES: &[Mistake] = &[
    mistake("blco-pack tt.tns", "tt.tns: no such file; check the path", "blco-pack t.tns -o o.blco"),
    mistake("blco-pack .", ".: is a directory; give a file", "blco-pack t.tns -o o.blco"),
    mistake(
        "blco-pack '~/t.tns'",
        "~/t.tns: no such file; take ~ out of the quotes",
        "HOME=$PWD; blco-pack ~/t.tns -o o.blco",
    ),
    mistake(
        "blco-pack t.tns -o '~/o.blco'",
        "cannot create ~/o.blco: no such file or directory; take ~ out of the quotes",
        "HOME=$PWD; blco-pack t.tns -o ~/o.blco",
    ),
    mistake(
        "printf '1 1 1 1\\r2 2 2 2\\r' > r.tns; blco-pack r.tns",
        "r.tns:1: lines end in CR alone; make line feeds of them: tr '\\r' '\\n'",
        "tr '\\r' '\\n' < r.tns | blco-pack - -o r.blco",
    ),
    mistake(
        "echo '{\"a\":1}' > j.tns; blco-pack j.tns",
        "j.tns:1: `…` is neither a header nor a row: give indices and a value, separated by spaces, or read a table with --modes",
        "blco-pack ratings.csv --modes user,title -o j.blco",
    ),
    mistake(
        "echo '{\"user\":\"ann\",\"film\":\"Heat\"}' > j.jsonl; blco-pack j.jsonl",
        "j.jsonl: say which columns are modes, and which holds values: --modes A,B,… --value C; the columns are user,film",
        "blco-pack j.jsonl --modes user,film",
    ),
    mistake(
        "echo '[{\"user\":\"ann\",\"film\":\"Heat\"}]' > j.json; blco-pack j.json --modes user,film",
        "j.json:1: is JSON, but not an object on each line (JSON Lines); convert it, for example: jq -c '.[]'",
        "tr -d '[]' < j.json > k.json; blco-pack k.json --modes user,film",
    ),
    mistake(
        ": > e.tns; blco-pack e.tns",
        "e.tns: no nonzeros; give a file with at least one row of indices and a value",
        "echo 1 1 1 1 > e.tns; blco-pack e.tns",
    ),
    mistake(
        "BLCO_FAULT=open:0:13 blco-pack t.tns -o o.blco",
        "cannot open t.tns: permission denied; check its permissions and those of its directory",
        "blco-pack t.tns -o o.blco",
    ),
    mistake(
        "gzip < t.tns | head -c 40 > c.tns.gz; blco-pack c.tns.gz",
        "c.tns.gz: the gzip data is cut short; fetch the whole file again",
        "gzip < t.tns > c.tns.gz; blco-pack c.tns.gz",
    ),
    mistake(
        "printf '\\3757zXZ\\0ab' > x.tns; blco-pack x.tns",
        "x.tns: is compressed by xz, where text is expected (plain, gzip or zstd): unpack it first",
        "cp t.tns x.tns; blco-pack x.tns",
    ),
    mistake(
        "printf '\\377\\3761\\0' > u.tns; blco-pack u.tns",
        "u.tns: is UTF-16 text, …: convert it first: iconv -f UTF-16 -t UTF-8",
        "cp t.tns u.tns; blco-pack u.tns",
    ),
    mistake(
        "printf '\\223NUMPY\\001\\0' > a.tns; blco-pack a.tns",
        "a.tns: is a NumPy array, …: write rows of indices and a value, as numpy.savetxt does, …",
        "printf '1 1 1\\n2 2 3\\n' > a.tns; blco-pack a.tns",
    ),
    mistake(
        "printf 'PK\\003\\004abcd' > a.tns; blco-pack a.tns",
        "a.tns: is a zip archive, …: unpack it first; name a NumPy archive .npz",
        "cp t.tns a.tns; blco-pack a.tns",
    ),
    mistake(
        "printf 'PK\\003\\004abcd' > r.xlsx; blco-pack r.xlsx --modes user,title",
        "r.xlsx: is a zip archive, …: save the spreadsheet as CSV first",
        "cp ratings.csv r.csv; blco-pack r.csv --modes user,title",
    ),
    mistake(
        "printf '\\320\\317\\021\\340\\241\\261\\032\\341' > r.xls; blco-pack r.xls --modes user,title",
        "r.xls: is an old Excel workbook, …: save it as CSV first",
        "cp ratings.csv r.csv; blco-pack r.csv --modes user,title",
    ),
    mistake(
        "printf 'MATLAB 5.0 MAT-file' > m.tns; blco-pack m.tns",
        "m.tns: is a MATLAB file, …: write its nonzeros as rows of indices and a value, as MATLAB's writematrix does",
        "cp t.tns m.tns; blco-pack m.tns",
    ),
    mistake(
        "printf '\\211HDF\\r\\n\\032\\n' > m.tns; blco-pack m.tns",
        "m.tns: is an HDF5 file, perhaps MATLAB's, …: write its nonzeros as rows of indices and a value, …",
        "cp t.tns m.tns; blco-pack m.tns",
    ),
    mistake(
        "printf 'PAR1\\025\\004' | blco-pack - -o p.blco",
        "standard input: is a Parquet file, …",
        "blco-pack ratings.csv --modes user,title -o p.blco",
    ),
    mistake(
        "printf '%%%%MatrixMarket matrix array real general\\n2 2\\n1\\n2\\n3\\n4\\n' > m.tns; blco-pack m.tns",
        "m.tns:1: an array is a dense matrix: only coordinate matrices …; write the nonzeros as coordinates",
        "printf '1 1 1\\n2 1 2\\n1 2 3\\n2 2 4\\n' > m.tns; blco-pack m.tns",
    ),
    mistake(
        "printf '%%%%MatrixMarket matrix coordinate pattern general\\n2 2 1\\n1 2\\n' > m.tns; blco-pack m.tns",
        "m.tns:1: a pattern has no values; pass --no-values, with which each row counts 1",
        "blco-pack m.tns --no-values",
    ),
];

/// Of rows.
const ROWS: &[Mistake] = &[
    mistake(
        "echo 1,2,3,4.5 > c.tns; blco-pack c.tns",
        "c.tns:1: `1,2,3,4.5` is one field; separate the fields by spaces, not commas, or read it as a table: …",
        "tr ',' ' ' < c.tns | blco-pack - -o c.blco",
    ),
    mistake(
        "echo '1;2;3;4.5' > c.tns; blco-pack c.tns",
        "c.tns:1: `1;2;3;4.5` is one field; separate the fields by spaces, not semicolons, or read it as a table: …",
        "tr ';' ' ' < c.tns | blco-pack - -o c.blco",
    ),
    mistake(
        "echo 1, 2, 3, 4.5 > c.tns; blco-pack c.tns",
        "c.tns:1: `1,` is one field; separate the fields by spaces, not commas",
        "tr ',' ' ' < c.tns | blco-pack - -o c.blco",
    ),
    mistake(
        "echo 1.0 2.0 3.0 4 > f.tns; blco-pack f.tns",
        "f.tns:1: index `1.0` of mode 1 has a point or exponent; write whole numbers, here 1",
        "echo 1 2 3 4 > f.tns; blco-pack f.tns",
    ),
    mistake(
        "echo 0.5 2 3 4 > f.tns; blco-pack f.tns",
        "f.tns:1: index `0.5` of mode 1 is not a whole number; indices come first in a row, the value last",
        "echo 2 3 4 0.5 > f.tns; blco-pack f.tns",
    ),
    mistake(
        "echo 1 0 2 4.5 > z.tns; blco-pack z.tns",
        "z.tns:1: index 0 of mode 2, but indices count from 1; if the file counts from 0, pass --index-base 0",
        "blco-pack z.tns --index-base 0",
    ),
    mistake(
        "printf '1 2\\n2 3\\n' > two.tns; blco-pack two.tns",
        "two.tns:1: the first row has one index and a value, …; if rows hold indices and no value, pass --no-values",
        "blco-pack two.tns --no-values",
    ),
    mistake(
        "printf '1 2 3\\n4 2 1\\n3 3 3\\n' > three.tns; blco-pack three.tns",
        "  note: every value is a whole number in the range of the indices; if rows hold three indices and no value, \
         pack again with --no-values",
        "blco-pack three.tns --no-values --force",
    ),
    mistake(
        "printf '3\\n3 3 3\\n1 1 1\\n' > h.tns; blco-pack h.tns",
        "h.tns:3: a short row: 3 fields where 4 are expected, …; correct the row, or pass --no-values if rows hold indices alone",
        "blco-pack h.tns --no-values",
    ),
    mistake(
        "printf '1 1 1 1\\n1 1 1\\n' > s.tns; blco-pack s.tns",
        "s.tns:2: a short row: 3 fields where 4 are expected, 3 indices and a value, as in the first row; correct the row, …",
        "printf '1 1 1 1\\n1 1 2 1\\n' > s.tns; blco-pack s.tns",
    ),
    mistake(
        "printf '1 1 1 1\\n1 1 2 1 5 rows\\n' > s.tns; blco-pack s.tns",
        "s.tns:2: a long row: 6 fields where 4 are expected, …; correct the row, or start a comment with #",
        "printf '1 1 1 1\\n1 1 2 1 # 5 rows\\n' > s.tns; blco-pack s.tns",
    ),
    mistake(
        "echo 1 1 1 NaN > n.tns; blco-pack n.tns",
        "n.tns:1: the value `NaN` is not finite; remove the row or correct it",
        "echo 1 1 1 0 > n.tns; blco-pack n.tns",
    ),
    mistake(
        "echo 1 2 3 4,5 > k.tns; blco-pack k.tns",
        "k.tns:1: `4,5` is not a number; write values with a decimal point, not a comma",
        "echo 1 2 3 4.5 > k.tns; blco-pack k.tns",
    ),
    mistake(
        "printf 'user item day stars\\n1 1 2 3\\n' > h.tns; blco-pack h.tns",
        "h.tns:1: `user` is not a number, but the index of mode 1 belongs here; start headers and comments with #",
        "printf '# user item day stars\\n1 1 2 3\\n' > h.tns; blco-pack h.tns",
    ),
    mistake(
        "echo 1 1 -1 3 > n.tns; blco-pack n.tns",
        "n.tns:1: index `-1` of mode 3 is negative; indices count from 1",
        "echo 1 1 1 3 > n.tns; blco-pack n.tns",
    ),
    mistake(
        "echo 1 1 99999999999 3 > b.tns; blco-pack b.tns",
        "b.tns:1: index `99999999999` of mode 3 is above 4294967295, the largest supported; renumber the mode",
        "echo 1 1 1 3 > b.tns; blco-pack b.tns",
    ),
    mistake(
        "blco-pack t.tns -o o.blco --dims 3,3",
        "t.tns:1: a long row: 4 fields where 3 are expected, 2 indices and a value, as --dims says; correct the row, \
         give one dim per mode with --dims, or start a comment with #",
        "blco-pack t.tns -o o.blco --dims 3,3,4",
    ),
    mistake(
        "blco-pack t.tns -o o.blco --dims 3x3x4",
        "invalid value '3x3x4' for '--dims <D1,D2,…>': separate dims by commas, such as 183,24,1140; see blco-pack --help",
        "blco-pack t.tns -o o.blco --dims 3,3,4",
    ),
    mistake(
        "blco-pack ratings.csv",
        "ratings.csv: say which columns are modes, and which holds values: --modes A,B,… --value C; the columns are user,title,stars",
        "blco-pack ratings.csv --modes user,title",
    ),
    mistake(
        "blco-pack ratings.csv --modes User,title",
        "ratings.csv: there is no column \"User\"; is \"user\" meant?; the columns are user,title,stars",
        "blco-pack ratings.csv --modes user,title",
    ),
    mistake(
        "blco-pack ratings.csv --modes user",
        "ratings.csv: order 1 is not supported; give 2 to 8 modes",
        "blco-pack ratings.csv --modes user,title",
    ),
    mistake(
        "blco-pack t.tns -o o.blco --modes user,title,day",
        "--modes: t.tns is no table by its name; name modes of text with --mode-names, or a table .csv, .tsv, .jsonl or .parquet",
        "blco-pack t.tns -o o.blco --mode-names user,title,day",
    ),
    mistake(
        "printf 'user;title;stars\\nann;Heat;4,5\\n' > de.csv; blco-pack de.csv --modes user,title --value stars",
        "de.csv:2: row 1, column \"stars\": \"4,5\" is not a number; write a decimal point, and no separators of thousands",
        "sed -i s/4,5/4.5/ de.csv; blco-pack de.csv --modes user,title --value stars",
    ),
    mistake(
        "blco-pack t.tns -o o.blco --dims 3,3,3",
        "t.tns:3: index 4 of mode 3 is beyond the dim 3 that --dims gives; correct the row, or give a larger dim with --dims",
        "blco-pack t.tns -o o.blco --dims 3,3,4",
    ),
    mistake(
        "blco-pack ratings.csv --modes user,titel",
        "ratings.csv: there is no column \"titel\"; the columns are user,title,stars",
        "blco-pack ratings.csv --modes user,title",
    ),
    mistake(
        "blco-pack ratings.csv --modes user,title --value stars",
        "ratings.csv: 1 of 4 rows are incomplete: …; --nulls drop leaves these rows out",
        "blco-pack ratings.csv --modes user,title --value stars --nulls drop",
    ),
    mistake(
        "blco-pack ratings.csv --modes title,stars --value user",
        "ratings.csv:2: row 1, column \"user\": \"ann\" is not a number; correct it, or name another column",
        "blco-pack ratings.csv --modes user,title --value stars --nulls drop",
    ),
];

/// Of options and names.
const OPTIONS: &[Mistake] = &[
    mistake(
        "blco-run t.blco --plan --nodes 4 --devices-per-node 0",
        "--nodes 4: say with --link how much a machine receives from the others, such as --link 50GB/s",
        "blco-run t.blco --plan --nodes 4 --devices-per-node 0 --link 50GB/s",
    ),
    mistake(
        "blco-cpd t.blco --plan --nodes 1 --devices-per-node 8 --backend cpu",
        "--devices-per-node 8: GPUs do not compute with --backend cpu; leave one of the two out",
        "blco-cpd t.blco --plan --nodes 1 --backend cpu",
    ),
    mistake(
        "blco-run t.blco --plan --nodes 1 --devices-per-node 0 --backend cuda",
        "--devices-per-node 0: no GPU computes then; give 1 or more, or leave out --backend cuda",
        "blco-run t.blco --plan --nodes 1 --devices-per-node 0",
    ),
    mistake(
        "blco-run t.blco --plan --nodes 2 --backend cpu --link 400Gb/s",
        "invalid value '400Gb/s' for '--link <RATE>': not a rate in bytes; rates look like 50GB/s or 1.2GiB/s (8 Gb/s are 1GB/s); see blco-run --help",
        "blco-run t.blco --plan --nodes 2 --backend cpu --link 50GB/s",
    ),
    mistake(
        "blco-pack t.tns o.blco",
        "'o.blco' is one argument too many; name the output with -o, and write values without spaces; see blco-pack --help",
        "blco-pack t.tns -o o.blco",
    ),
    mistake(
        "blco-pack t.tns -o o.blco --memory 4 GB",
        "'GB' is one argument too many; name the output with -o, and write values without spaces; see blco-pack --help",
        "blco-pack t.tns -o o.blco --memory 4GB",
    ),
    mistake(
        "blco-pack t.tns -o o.blco --memory -1",
        "invalid value '-1' for '--memory <SIZE>': not a size; sizes look like 64MiB, 2GB or 4096; see blco-pack --help",
        "blco-pack t.tns -o o.blco --memory 64MiB",
    ),
    mistake("blco-pack -i t.tns", "there is no option -i; see blco-pack --help", "blco-pack t.tns -o o.blco"),
    mistake(
        "blco-export t.tns t.blco",
        "t.blco: .blco is not an ending of coordinate text; end it in .tns, .csv, .tsv, .npz or .mtx; the store comes \
         first, then the output",
        "blco-export t.blco o.tns",
    ),
    mistake(
        "blco-run t.blco --backend gpu",
        "invalid value 'gpu' for '--backend <BACKEND>' [possible values: auto, cpu, cuda]; see blco-run --help",
        "blco-run t.blco --backend CPU --precision F32",
    ),
    mistake(
        "blco-run t.blco --rank 2.5",
        "invalid value '2.5' for '--rank <R>': not a whole number; see blco-run --help",
        "blco-run t.blco --rank 2",
    ),
    mistake(
        "blco-cpd t.blco --rank 2..3",
        "invalid value '2..3' for '--rank <R>': give one rank, or compare several with --ranks 2..3; see blco-cpd --help",
        "blco-cpd t.blco --ranks 2..3",
    ),
    mistake(
        "blco-cpd t.blco --rank 0",
        "invalid value '0' for '--rank <R>': give a whole number from 1 to 16384; see blco-cpd --help",
        "blco-cpd t.blco --rank 1",
    ),
    mistake(
        "blco-gen -q --dims 60,50,4000 --nnz 60k d.tns > made; blco-pack -q d.tns --chunk-bytes 64KiB > made
        rm d.blco/chunk-000000.bin; blco-run d.blco",
        "d.blco/chunk-000000.bin: missing (chunk-missing); blco-info d.blco --repair NEWSTORE writes what is intact",
        "blco-info d.blco --repair s.blco > lost || blco-run s.blco",
    ),
    mistake(
        "blco-run t.blco/manifest",
        "t.blco/manifest: a file, not a store; name its directory, t.blco",
        "blco-run t.blco",
    ),
    mistake(
        "mkdir d; touch d/notes; blco-cpd t.blco -r 2 -o d",
        "d: holds \"notes\", which is no result of these programs; name another directory",
        "blco-cpd t.blco -r 2 -o e",
    ),
    mistake(
        "blco-pack t.tns -o F --force",
        "F: exists and is not a store; name another output",
        "blco-pack t.tns -o o.blco",
    ),
    mistake(
        "blco-cpd --resume t.blco",
        "t.blco: holds no checkpoint with its command; name another directory, or repeat the whole command, with --resume",
        "blco-cpd t.blco --checkpoint c --max-iters 1 --tol 0 > /dev/null; blco-cpd --resume c --force",
    ),
    mistake(
        "blco-run t.blco --mode 1",
        "unexpected argument '--mode' found; a similar argument exists: '--modes'; see blco-run --help",
        "blco-run t.blco --modes 1",
    ),
    mistake(
        "blco-run t.blco --modes 4",
        "--modes 4: \"4\" is not a mode of this store; give all, or modes from 1 to 3 such as 1,3",
        "blco-run t.blco --modes 1,3",
    ),
    mistake(
        "blco-run t.blco --modes 0",
        "--modes 0: \"0\" is not a mode of this store; give all, or modes from 1 to 3 such as 1,3",
        "blco-run t.blco --modes all",
    ),
    mistake(
        "blco-run t.blco --rank 0",
        "invalid value '0' for '--rank <R>': 0 is not in 1..=1048576; see blco-run --help",
        "blco-run t.blco --rank 1",
    ),
    mistake(
        "blco-run t.blco --factors F --rank 5",
        "F: has rank 4, and --rank says 5; leave --rank out",
        "blco-run t.blco --factors F --rank 4",
    ),
    mistake(
        "blco-cpd t.blco --factors F -r 5",
        "F: has rank 4, and --rank says 5; leave --rank out",
        "blco-cpd t.blco --factors F -r 4",
    ),
    mistake(
        "blco-pack t.tns -o o.blco --memory 4X",
        "invalid value '4X' for '--memory <SIZE>': not a size; sizes look like 64MiB, 2GB or 4096; see blco-pack --help",
        "blco-pack t.tns -o o.blco --memory 4GiB",
    ),
    mistake(
        "blco-pack t.tns -o o.blco --memory 4",
        "--memory 4 B: packing takes at least 64.0 MiB; raise it",
        "blco-pack t.tns -o o.blco --memory 64MiB",
    ),
    mistake(
        "BLCO_FAULT=write:0:28 blco-pack t.tns -o o.blco",
        "cannot write o.blco: no space left on device; make room, or write elsewhere",
        "blco-pack t.tns -o o.blco",
    ),
    mistake(
        "blco-pack t.tns",
        "t.blco: a store already exists; replace it with --force, or name another with -o",
        "blco-pack t.tns --force",
    ),
    mistake(
        "blco-pack t.tns -o no/o.blco",
        "cannot create no/o.blco: no such file or directory; check the path",
        "blco-pack t.tns -o o.blco",
    ),
    mistake(
        "blco-pack - < t.tns",
        "standard input has no name; give the store one with -o",
        "blco-pack - -o o.blco < t.tns",
    ),
    mistake("blco-run t.tns", "t.tns: a file, not a store; did you mean t.blco?", "blco-run t.blco"),
    mistake(
        "blco-run",
        "the following required arguments were not provided: <STORE>; see blco-run --help",
        "blco-run t.blco",
    ),
    mistake(
        "blco-run t.blco --backend cuda",
        "no CUDA device: …; install a driver, or take --backend cpu",
        "blco-run t.blco --backend cpu",
    ),
    mistake(
        "blco-run t.blco --device-memory 1GB",
        "  note: no GPU driver is installed: --device-memory has no effect",
        "blco-run t.blco",
    ),
    mistake(
        "blco-cpd t.blco -r 2 --nonneg",
        "  note: the tensor has negative values, down to -1: a model without negative numbers cannot fit those; leave out \
         --nonneg, or shift the values",
        "blco-cpd t.blco -r 2 --force",
    ),
    mistake(
        "blco-cpd t.blco -r 2 -o F",
        "F: results already exist; replace them with --force",
        "blco-cpd t.blco -r 2 -o G",
    ),
    mistake(
        "blco-run t.blco --op ttv",
        "--op ttv goes along modes: give them with --modes, such as --modes 1",
        "blco-run t.blco --op ttv --modes 1",
    ),
    mistake(
        "blco-run t.blco --op ttv --modes 1 --rank 3",
        "--rank is not an option of --op ttv",
        "blco-run t.blco --op ttv --modes 1",
    ),
    mistake(
        "blco-export t.blco t.xyz",
        "t.xyz: .xyz is not an ending of coordinate text; end it in .tns, .csv, .tsv, .npz or .mtx",
        "blco-export t.blco o.tns",
    ),
    mistake(
        "blco-export t.blco o.tns.gz",
        "o.tns.gz: would not be compressed; write to - and pipe that through gzip, or name another",
        "blco-export t.blco - | gzip > o.tns.gz",
    ),
    mistake(
        "blco-export t.blco t.mtx",
        "t.mtx: a Matrix Market file holds a matrix; t.blco is of order 3; write .csv or .tns",
        "blco-export t.blco o.csv",
    ),
    mistake(
        "blco-gen --dims 3,3 g.tns",
        "the number of nonzeros is missing: give --nnz, …",
        "blco-gen --dims 3,3 --nnz 5 g.tns",
    ),
];

/// Whether `text` is `pattern`, in which `…` stands for any text.
fn matches(text: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('…');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let mut last = "";
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        (rest, last) = (&rest[at + part.len()..], part);
    }
    rest.is_empty() || pattern.contains('…') && last.is_empty()
}

fn judge(mistake: &Mistake) {
    let Mistake { wrong, says, mended } = mistake;
    let dir = tempfile::tempdir().unwrap();
    let given = shell(GIVEN, dir.path());
    assert!(given.status.success(), "{}", String::from_utf8_lossy(&given.stderr));
    let output = shell(wrong, dir.path());
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(!err.contains("os error") && !out.contains("os error"), "{wrong}: {err}");
    if says.starts_with("  note: ") {
        assert!(output.status.success() && out.lines().any(|line| line == *says), "{wrong}: {out}{err}");
    } else {
        assert_eq!((output.status.code(), err.lines().count(), &out[..]), (Some(2), 1, ""), "{wrong}: {err}");
        let said = err.trim_end().strip_prefix("blco-").and_then(|line| line.split_once(": "));
        assert!(said.is_some_and(|(_, said)| matches(said, says)), "{wrong}: {err}");
    }
    let output = shell(mended, dir.path());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && message.is_empty(), "{mended}: {message}");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(!says.starts_with("  note: ") || !report.contains("note: "), "{mended}: {report}");
}

#[test]
fn files_that_cannot_be_read() {
    FILES.iter().for_each(judge);
}

#[test]
fn rows_that_are_not_as_they_should_be() {
    ROWS.iter().for_each(judge);
}

#[test]
fn options_and_names() {
    // On a machine with a GPU there is nothing to say of its absence.
    let real = Path::new("/dev/nvidiactl").exists();
    OPTIONS.iter().filter(|mistake| !(real && mistake.says.contains("no GPU driver"))).for_each(judge);
}

#[test]
fn there_are_more_than_forty() {
    let all = || FILES.iter().chain(ROWS).chain(OPTIONS);
    assert!(all().count() >= 40, "{}", all().count());
    assert!(all().all(|mistake| mistake.wrong != mistake.mended));
}

#[test]
fn patterns_can_fail() {
    assert!(matches("a b c", "a b c") && matches("a b c", "a … c") && matches("a b c", "a …"));
    assert!(
        !matches("a b c", "a b")
            && !matches("a b c", "b …")
            && !matches("a b c", "a … d")
            && !matches("a b c d", "a … c")
    );
}
