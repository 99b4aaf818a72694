package packages

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// with returns the entries of a valid package and additional ones.
func with(more ...entry) []entry { return append(files(), more...) }

// TestAttacks: archives with the required digest that are harmful. Each is refused and leaves
// nothing, neither in the store nor next to it.
func TestAttacks(t *testing.T) {
	small := Limits{Archive: 1 << 20, Files: 8, File: 1 << 16, Total: 1 << 17, Ratio: 20}
	many := files()
	for i := range 9 {
		many = append(many, entry{name: fmt.Sprintf("file-%d", i)})
	}
	nested := files()
	for i := range 40 {
		nested = append(nested, entry{name: fmt.Sprintf("d%d/", i), mode: fs.ModeDir | 0o755})
	}
	zeros := strings.Repeat("\x00", 60000)
	attacks := []struct {
		name    string
		entries []entry
		says    string
	}{
		{"parent directory", with(entry{name: "../outside"}), "not a clean relative path"},
		{"parent directory within", with(entry{name: "docs/../../outside"}), "not a clean relative path"},
		{"absolute path", with(entry{name: "/outside"}), "not a clean relative path"},
		{"absolute path of Windows", with(entry{name: `C:\outside`}), "not portable"},
		{"drive of Windows", with(entry{name: "C:outside"}), "not portable"},
		{"backslashes", with(entry{name: `..\outside`}), "not portable"},
		{"alternate data stream", with(entry{name: "LICENSE:hidden"}), "not portable"},
		{"null byte", with(entry{name: "outside\x00.md"}), "not portable"},
		{"line break", with(entry{name: "a\n0000  b"}), "not portable"},
		{"letters of other alphabets", with(entry{name: "LIСENSE"}), "not portable"},
		{"dot", with(entry{name: "./outside"}), "not a clean relative path"},
		{"empty element", with(entry{name: "a//b"}), "not a clean relative path"},
		{"no name", with(entry{name: ""}), "is empty"},
		{"trailing dot", with(entry{name: "LICENSE."}), "ends with a space or a dot"},
		{"endless name", with(entry{name: strings.Repeat("a/", 600) + "b"}), "longer than 1024"},
		{"long name", with(entry{name: strings.Repeat("a", 256)}), "not a clean relative path"},
		{"directory upwards", with(entry{name: "../", mode: fs.ModeDir | 0o755}), "not a clean relative path"},
		{"symbolic link", with(entry{name: "link", content: "/etc/passwd", mode: fs.ModeSymlink | 0o777}), "is not a regular file"},
		{"file through a symbolic link", with(entry{name: "link", content: "/tmp", mode: fs.ModeSymlink | 0o777}, entry{name: "link/outside"}), "is not a regular file"},
		{"device", with(entry{name: "disk", mode: fs.ModeDevice | 0o666}), "is not a regular file"},
		{"pipe", with(entry{name: "pipe", mode: fs.ModeNamedPipe | 0o666}), "is not a regular file"},
		{"socket", with(entry{name: "socket", mode: fs.ModeSocket | 0o666}), "is not a regular file"},
		{"file with the mode of a directory", with(entry{name: "odd", mode: fs.ModeDir | 0o755}), "by its name or by its mode"},
		{"the same name twice", with(entry{name: "LICENSE"}), "have the same path"},
		{"the program twice", with(entry{name: "terraform-provider-demo_v1.2.3", content: "another"}), "have the same path"},
		{"names that differ in case", with(entry{name: "license"}), "have the same path"},
		{"directories that differ in case", with(entry{name: "DOCS/more.md"}), "have the same path"},
		{"file and directory", with(entry{name: "LICENSE/more"}), "have the same path"},
		{"directory and file", with(entry{name: "docs"}), "have the same path"},
		{"two programs", with(entry{name: "terraform-provider-demo"}), "several programs"},
		{"no program", files()[:3], "has no file terraform-provider-demo"},
		{"nothing", nil, "has no file terraform-provider-demo"},
		{"too many files", many, "more than 8 files"},
		{"too many directories", nested, "more than 32 files and directories"},
		{"large file", with(entry{name: "large", content: strings.Repeat("x", 1<<16+1)}), "limit of 65536"},
		{"large in all", with(entry{name: "a", content: strings.Repeat("x", 60000)}, entry{name: "b", content: strings.Repeat("x", 60000)},
			entry{name: "c", content: strings.Repeat("x", 60000)}), "larger than 131072 bytes in total"},
		{"bomb", with(entry{name: "zeros", content: zeros, method: zip.Deflate}), "more than 20 times larger"},
		{"encrypted", with(entry{name: "secret", content: "abc", change: func(h *zip.FileHeader) {
			h.Flags |= 1
			h.UncompressedSize64, h.CompressedSize64 = 3, 3
		}}), "is encrypted"},
		{"unknown compression", with(entry{name: "odd", content: "abc", change: func(h *zip.FileHeader) {
			h.Method = 93
			h.UncompressedSize64, h.CompressedSize64 = 3, 3
		}}), "method 93"},
		{"larger than announced", with(entry{name: "odd", content: "abcdef", change: func(h *zip.FileHeader) {
			h.UncompressedSize64, h.CompressedSize64 = 3, 6
		}}), "odd"},
		{"smaller than announced", with(entry{name: "odd", content: "abc", change: func(h *zip.FileHeader) {
			h.UncompressedSize64, h.CompressedSize64 = 6, 3
		}}), "odd"},
		{"announces an endless size", with(entry{name: "odd", content: "abc", change: func(h *zip.FileHeader) {
			h.UncompressedSize64, h.CompressedSize64 = 1<<63, 3
		}}), "limit of 65536"},
		{"wrong checksum", with(entry{name: "odd", content: "abc", change: func(h *zip.FileHeader) {
			h.UncompressedSize64, h.CompressedSize64, h.CRC32 = 3, 3, 1
		}}), "checksum"},
	}
	for _, attack := range attacks {
		t.Run(attack.name, func(t *testing.T) {
			refuses(t, pack(t, attack.entries...), small, attack.says)
		})
	}
	t.Run("endless list of files", func(t *testing.T) {
		var entries []entry
		for i := range 4000 {
			entries = append(entries, entry{name: fmt.Sprintf("%0500d", i)})
		}
		limits := small
		limits.Archive = 1 << 30
		refuses(t, pack(t, entries...), limits, "directory is too large")
	})
	t.Run("large archive", func(t *testing.T) {
		limits := small
		limits.Archive = 100
		refuses(t, pack(t, files()...), limits, "limit of 100 bytes")
	})
	t.Run("files that overlap", func(t *testing.T) { refuses(t, overlapping(t), small, "more than 20 times larger") })
	t.Run("directory with content", func(t *testing.T) {
		refuses(t, patched(pack(t, files()...), func(i int, record []byte) {
			if i == 1 {
				binary.LittleEndian.PutUint32(record[24:], 3)
			}
		}), small, "has content")
	})
	t.Run("cut off", func(t *testing.T) {
		archive := pack(t, files()...)
		refuses(t, archive[:len(archive)-10], small, "reading the archive")
	})
}

// refuses installs an archive whose digest is required, expects an error, and checks for leftovers.
func refuses(t *testing.T, archive []byte, limits Limits, says string) {
	t.Helper()
	parent := storeDir(t)
	dir := filepath.Join(parent, "store")
	s, err := OpenStore(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	_, err = New(s, nil, limits).Install(t.Context(), request(packedMirror(t, archive), zh(archive)))
	failsWith(t, err, ErrRefused, says)
	want := "drwxr-xr-x store\n"
	for line := range strings.Lines(emptyStore) {
		mode, name, _ := strings.Cut(line, " ")
		want += mode + " store/" + name
	}
	if got := tree(t, parent); got != want {
		t.Errorf("left behind:\n%s", got)
	}
}

// overlapping returns an archive with seven files that share the bytes of the first. It is small
// but unpacks to a large size, without a suspicious file.
func overlapping(t *testing.T) []byte {
	plain := pack(t, entry{name: "terraform-provider-demo", content: strings.Repeat("\x00", 60000), method: zip.Deflate}, entry{name: "b"}, entry{name: "c"},
		entry{name: "d"}, entry{name: "e"}, entry{name: "f"}, entry{name: "g"})
	reader, err := zip.NewReader(bytes.NewReader(plain), int64(len(plain)))
	if err != nil {
		t.Fatal(err)
	}
	first := reader.File[0]
	return patched(plain, func(i int, record []byte) {
		if i > 0 {
			binary.LittleEndian.PutUint16(record[10:], zip.Deflate)
			binary.LittleEndian.PutUint32(record[16:], first.CRC32)
			binary.LittleEndian.PutUint32(record[20:], uint32(first.CompressedSize64))
			binary.LittleEndian.PutUint32(record[24:], uint32(first.UncompressedSize64))
			binary.LittleEndian.PutUint32(record[42:], 0)
		}
	})
}

// patched modifies the entries of an archive's directory.
func patched(archive []byte, change func(i int, record []byte)) []byte {
	at := bytes.Index(archive, []byte("PK\x01\x02"))
	for i := 0; bytes.HasPrefix(archive[at:], []byte("PK\x01\x02")); i++ {
		record := archive[at:]
		change(i, record)
		for _, length := range []int{28, 30, 32} { // of name, extra and comment
			at += int(binary.LittleEndian.Uint16(record[length:]))
		}
		at += 46
	}
	return archive
}

// TestAttacksOnDirectories: unpacked packages that are refused.
func TestAttacksOnDirectories(t *testing.T) {
	entries := files()
	attacks := []struct {
		name string
		do   func(dir string) error
		says string
	}{
		{"symbolic link out of it", func(dir string) error { return os.Symlink("/etc/passwd", filepath.Join(dir, "link")) }, "is not a regular file"},
		{"symbolic link within", func(dir string) error { return os.Symlink("LICENSE", filepath.Join(dir, "link")) }, "is not a regular file"},
		{"directory by a symbolic link", func(dir string) error { return os.Symlink("docs", filepath.Join(dir, "link")) }, "is not a regular file"},
		{"two programs", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "terraform-provider-demo"), nil, 0o755)
		}, "several programs"},
		{"names that differ in case", func(dir string) error { return os.WriteFile(filepath.Join(dir, "license"), nil, 0o644) }, "have the same path"},
		{"odd name", func(dir string) error { return os.WriteFile(filepath.Join(dir, "a\nb"), nil, 0o644) }, "not portable"},
		{"large file", func(dir string) error { return os.Truncate(filepath.Join(dir, "LICENSE"), 1<<40) }, "larger than the limit"},
	}
	for _, attack := range attacks {
		t.Run(attack.name, func(t *testing.T) {
			mirror := unpackedMirror(t, entries)
			if err := attack.do(filepath.Join(mirror.Directory, demo.Source.String(), "1.2.3", "linux_amd64")); err != nil {
				t.Skip("this file system rejects it:", err)
			}
			dir := storeDir(t)
			_, err := New(openStore(t, dir), nil, Limits{}).Install(t.Context(), request(mirror, h1(t, entries)))
			failsWith(t, err, ErrRefused, attack.says)
			if left := tree(t, dir); left != emptyStore {
				t.Errorf("left behind:\n%s", left)
			}
		})
	}
}

// growing is a directory in which a file grows after its size was read.
type growing struct{ fstest.MapFS }

func (g growing) Open(name string) (fs.File, error) {
	if name == "LICENSE" {
		return fstest.MapFS{name: {Data: []byte(strings.Repeat("x", 100_000))}}.Open(name)
	}
	return g.MapFS.Open(name)
}

func TestFileThatGrows(t *testing.T) {
	from := growing{fstest.MapFS{"LICENSE": {Data: []byte("x")}, "terraform-provider-demo": {Data: []byte(programText)}}}
	into, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = into.Close() }()
	err = copyPackage(t.Context(), from, into, "demo", Limits{}.withDefaults(), &meter{})
	failsWith(t, err, ErrRefused, "LICENSE", "announced")
	if info, err := into.Stat("LICENSE"); err != nil || info.Size() > 2 {
		t.Errorf("%v, %v", info, err)
	}
}

// FuzzUnpack: any archive is either refused, or its files are all within the staging directory,
// regular, read-only, and within the limits.
func FuzzUnpack(f *testing.F) {
	f.Add(pack(f, files()...))
	f.Add(pack(f, with(entry{name: "../outside"})...))
	f.Add(pack(f, with(entry{name: "link", content: "/tmp", mode: fs.ModeSymlink | 0o777}, entry{name: "link/outside"})...))
	f.Add(pack(f, with(entry{name: "license"}, entry{name: "a/b/c/d"})...))
	f.Add(pack(f, entry{name: "terraform-provider-demo", content: strings.Repeat("\x00", 5000), method: zip.Deflate}))
	f.Add([]byte("PK\x05\x06" + strings.Repeat("\x00", 18)))
	limits := Limits{Files: 8, File: 10000, Total: 20000, Ratio: 20}.withDefaults()
	f.Fuzz(func(t *testing.T, archive []byte) {
		parent := storeDir(t)
		stage := filepath.Join(parent, "stage")
		if err := os.Mkdir(stage, 0o755); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(stage)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = root.Close() }()
		err = unpack(t.Context(), bytes.NewReader(archive), int64(len(archive)), root, "demo", limits, &meter{})
		if beside, _ := os.ReadDir(parent); len(beside) != 1 {
			t.Fatalf("beside the staging directory: %v", beside)
		}
		if err != nil {
			if !errors.Is(err, ErrRefused) {
				t.Fatalf("%v is no refusal", err)
			}
			return
		}
		within(t, stage, limits)
	})
}

func within(t *testing.T, stage string, limits Limits) {
	files, total, programs := 0, int64(0), 0
	err := filepath.WalkDir(stage, func(at string, d fs.DirEntry, err error) error {
		if err != nil || at == stage {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch mode := info.Mode(); mode {
		case fs.ModeDir | 0o555:
			return nil
		case 0o555:
			programs++
		case 0o444:
		default:
			return fmt.Errorf("%s has the mode %s", at, mode)
		}
		files++
		total += info.Size()
		return nil
	})
	if err != nil || files > limits.Files || total > limits.Total || programs != 1 {
		t.Fatalf("%d files of %d bytes, %d programs, %v", files, total, programs, err)
	}
}
