package packages

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// runTest runs one test in another process, and returns its output.
func runTest(t *testing.T, test string, env ...string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// TestTampering: every modification of a package in the store is detected, and installing it again
// repairs it.
func TestTampering(t *testing.T) {
	entries := files()
	archive := pack(t, entries...)
	mirror := packedMirror(t, archive)
	const program = "terraform-provider-demo_v1.2.3"
	rewrite := func(name, content string, mode fs.FileMode) func(string) error {
		return func(dir string) error {
			at := filepath.Join(dir, name)
			return errors.Join(os.Chmod(filepath.Dir(at), 0o755), os.RemoveAll(at), os.WriteFile(at, []byte(content), mode), os.Chmod(at, mode),
				os.Chmod(filepath.Dir(at), 0o555))
		}
	}
	tests := []struct {
		name string
		do   func(dir string) error
		kind error
	}{
		{"another program", rewrite(program, "#!/bin/sh\necho evil\n", 0o555), ErrRefused},
		{"one byte more", rewrite("LICENSE", "do what you like.", 0o444), ErrRefused},
		{"a file more", rewrite("more", "", 0o444), ErrRefused},
		{"a file more, deeper", rewrite("docs/more", "", 0o444), ErrRefused},
		{"writable", rewrite("LICENSE", "do what you like", 0o644), ErrRefused},
		{"setuid", func(dir string) error { return os.Chmod(filepath.Join(dir, program), 0o555|fs.ModeSetuid) }, ErrRefused},
		{"a writable directory", func(dir string) error { return os.Chmod(filepath.Join(dir, "docs"), 0o777) }, ErrRefused},
		{"a file less", func(dir string) error {
			return errors.Join(os.Chmod(dir, 0o755), os.Remove(filepath.Join(dir, "LICENSE")))
		}, ErrRefused},
		{"a link to the same content", func(dir string) error {
			at, copied := filepath.Join(dir, program), filepath.Join(storeDir(t), "program")
			return errors.Join(os.Chmod(dir, 0o755), os.Rename(at, copied), os.Symlink(copied, at))
		}, ErrRefused},
		{"a link instead of a directory", func(dir string) error {
			copied := filepath.Join(storeDir(t), "package")
			return errors.Join(os.Chmod(dir, 0o755), os.Rename(dir, copied), os.Symlink(copied, dir))
		}, ErrRefused},
		{"a file instead of a directory", func(dir string) error {
			return errors.Join(os.Chmod(dir, 0o755), os.Rename(dir, filepath.Join(storeDir(t), "package")), os.WriteFile(dir, nil, 0o444))
		}, ErrRefused},
		{"nothing left", func(dir string) error {
			return errors.Join(os.Chmod(dir, 0o755), os.Rename(dir, filepath.Join(storeDir(t), "package")))
		}, ErrNotFound},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := openStore(t, storeDir(t))
			i := New(s, nil, Limits{})
			first, err := i.Install(t.Context(), request(mirror, zh(archive)))
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Verify(t.Context(), first.Content); err != nil {
				t.Fatal(err)
			}
			if err := tt.do(first.Directory); err != nil {
				t.Fatal(err)
			}
			failsWith(t, s.Verify(t.Context(), first.Content), tt.kind)
			_, err = i.Install(t.Context(), request(FilesystemMirror{t.TempDir()}, zh(archive)))
			failsWith(t, err, ErrNotFound)
			second, err := i.Install(t.Context(), request(mirror, zh(archive)))
			if err != nil || second != first {
				t.Fatalf("first %+v, then %+v, %v", first, second, err)
			}
			if err := s.Verify(t.Context(), first.Content); err != nil {
				t.Error(err)
			}
			if left, _ := os.ReadDir(filepath.Join(s.dir, stagingDir)); len(left) > 0 {
				t.Errorf("left in staging: %v", left)
			}
		})
	}
}

// TestProgramThatIsNotExecutable: the digest does not cover the mode.
func TestProgramThatIsNotExecutable(t *testing.T) {
	archive := pack(t, files()...)
	mirror := packedMirror(t, archive)
	i := New(openStore(t, storeDir(t)), nil, Limits{})
	first, err := i.Install(t.Context(), request(mirror, zh(archive)))
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []fs.FileMode{0o444, 0o555} {
		if err := errors.Join(os.Chmod(first.Executable, 0o444), os.Chmod(filepath.Join(first.Directory, "LICENSE"), other)); err != nil {
			t.Fatal(err)
		}
		if other == 0o444 {
			failsWith(t, i.store.Verify(t.Context(), first.Content), ErrRefused, "no file is executable")
		}
		second, err := i.Install(t.Context(), request(mirror, zh(archive)))
		if err != nil || second != first {
			t.Errorf("%+v, %v", second, err)
		}
		if out, err := exec.Command(second.Executable).Output(); err != nil || string(out) != "a provider\n" {
			t.Errorf("running it prints %q, %v", out, err)
		}
	}
}

// TestRecords: a damaged or forged record does not bypass verification.
func TestRecords(t *testing.T) {
	archive := pack(t, files()...)
	for _, text := range []string{"", "{", "[]", `{"content": "h1:../../etc"}`, `{"content": "` + string(zh(nil)) + `"}`,
		fmt.Sprintf(`{"content": %q, "archive": %q}`, h1(t, files()[:1]), zh(archive))} {
		s := openStore(t, storeDir(t))
		i := New(s, nil, Limits{})
		if _, err := i.Install(t.Context(), request(packedMirror(t, archive), zh(archive))); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(s.dir, recordPath(demo)), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := i.Install(t.Context(), request(packedMirror(t, archive), zh(archive)))
		if err != nil || got.Stored || got.Content != h1(t, files()) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func TestCollect(t *testing.T) {
	now := clocktesting.NewFakePassiveClock(time.Now())
	dir := storeDir(t)
	s, err := OpenStore(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	i := New(s, nil, Limits{})
	var installed []Installed
	for n := range 4 {
		entries := with(entry{name: "number", content: fmt.Sprint(n)})
		archive := pack(t, entries...)
		ask := request(packedMirror(t, archive), zh(archive))
		ask.Package.Version = Version(fmt.Sprintf("1.2.%d", n))
		ask.Origin = renamed{ask.Origin}
		got, err := i.Install(t.Context(), ask)
		if err != nil {
			t.Fatal(err)
		}
		installed = append(installed, got)
	}
	byContent, byArchive, used, unused := installed[0], installed[1], installed[2], installed[3]
	keep := []Digest{byContent.Content, byArchive.Archive}
	collect := func(want ...Digest) {
		t.Helper()
		removed, err := s.Collect(keep, time.Hour)
		if err != nil || fmt.Sprint(removed) != fmt.Sprint(want) {
			t.Errorf("removed %v, %v; want %v", removed, err, want)
		}
	}
	collect() // all are new
	now.SetTime(now.Now().Add(2 * time.Hour))
	if err := s.Verify(t.Context(), used.Content); err != nil {
		t.Fatal(err)
	}
	collect(unused.Content)
	for _, one := range installed {
		err := s.Verify(t.Context(), one.Content)
		if gone := one == unused; gone != errors.Is(err, ErrNotFound) || !gone && err != nil {
			t.Errorf("%s: %v", one.Content, err)
		}
	}
	if left := tree(t, dir); strings.Contains(left, "1.2.3/linux") || !strings.Contains(left, "1.2.2/linux") || strings.Contains(left, stagingDir+"/") {
		t.Errorf("left:\n%s", left)
	}
	keep = nil
	now.SetTime(now.Now().Add(2 * time.Hour))
	if removed, err := s.Collect(nil, time.Hour); err != nil || len(removed) != 3 {
		t.Errorf("removed %v, %v", removed, err)
	}
	if err := os.WriteFile(filepath.Join(dir, packagesDir, hex.EncodeToString([]byte("no package"))), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	now.SetTime(now.Now().Add(2 * time.Hour))
	collect()
	if left, _ := os.ReadDir(filepath.Join(dir, packagesDir)); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// renamed is an origin with one package under every version.
type renamed struct{ Origin }

func (r renamed) Find(ctx context.Context, _ Package) (Found, error) { return r.Origin.Find(ctx, demo) }

// TestConcurrentProcesses: several processes and goroutines install, damage and collect packages in one
// store. Every installation returns the right package, and nothing is left over.
func TestConcurrentProcesses(t *testing.T) {
	archive := pack(t, files()...)
	dir, mirror := os.Getenv("ATOLL_TEST_STORE"), FilesystemMirror{os.Getenv("ATOLL_TEST_MIRROR")}
	if dir == "" {
		dir, mirror = storeDir(t), packedMirror(t, archive)
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { runTest(t, "TestManyAtOnce", "ATOLL_TEST_STORE="+dir, "ATOLL_TEST_MIRROR="+mirror.Directory) })
		}
		all.Wait()
		s := openStore(t, dir)
		if _, err := s.Collect(nil, time.Hour); err != nil {
			t.Error(err)
		}
		if left, _ := os.ReadDir(filepath.Join(dir, stagingDir)); len(left) > 0 {
			t.Errorf("left in staging: %v", left)
		}
		return
	}
	s := openStore(t, dir)
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			for round := range 25 {
				got, err := New(s, nil, Limits{}).Install(t.Context(), request(mirror, zh(archive)))
				if err != nil || got.Content != h1(t, files()) {
					t.Errorf("%+v, %v", got, err)
				}
				if n == 0 && round%5 == 0 {
					_ = os.Chmod(got.Executable, 0o444) // it may be gone already
				}
				if n == 1 && round%5 == 0 {
					if _, err := s.Collect(nil, 24*time.Hour); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
}

// TestKilled: a killed process leaves nothing that could be used. Its leftovers are swept, but not
// those of a live process.
func TestKilled(t *testing.T) {
	if dir := os.Getenv("ATOLL_TEST_KILLED"); dir != "" {
		s := openStore(t, dir)
		st, err := s.stage()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.root.WriteFile(st.name+"/"+archiveName, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.root.Mkdir(st.name+"/read-only", 0o755), s.root.Mkdir(st.name+"/read-only/below", 0o555), s.root.Chmod(st.name+"/read-only", 0o555)); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		select {}
	}
	dir := storeDir(t)
	s := openStore(t, dir)
	mine, err := s.stage()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), "ATOLL_TEST_KILLED="+dir)
	if err := cmd.Run(); err == nil {
		t.Fatal("it was not killed")
	}
	if left, _ := os.ReadDir(filepath.Join(dir, stagingDir)); len(left) != 2 {
		t.Fatalf("in staging: %v", left)
	}
	if _, err := s.Collect(nil, 0); err != nil {
		t.Fatal(err)
	}
	left, _ := os.ReadDir(filepath.Join(dir, stagingDir))
	if len(left) != 1 || stagingDir+"/"+left[0].Name() != mine.name {
		t.Errorf("in staging: %v", left)
	}
	if err := mine.close(); err != nil {
		t.Error(err)
	}
}

// TestFullDisk: writes fail, of the archive or of its files. A file size limit simulates the disk;
// it applies to a process, so another one installs.
func TestFullDisk(t *testing.T) {
	archive := pack(t, with(entry{name: "large", content: string(someBytes(100_000))})...)
	bomb := pack(t, with(entry{name: "large", content: strings.Repeat("a", 100_000), method: 8})...)
	if dir := os.Getenv("ATOLL_TEST_FULL"); dir != "" {
		signal.Ignore(syscall.SIGXFSZ)
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 50_000, Max: 50_000}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"archive", "file"} {
			mirror := FilesystemMirror{filepath.Join(os.Getenv("ATOLL_TEST_MIRROR"), name)}
			_, err := New(openStore(t, dir), nil, Limits{Ratio: 1000}).Install(t.Context(), request(mirror, zh(archive), zh(bomb)))
			failsWith(t, err, syscall.EFBIG, demo.String())
			if errors.Is(err, ErrRefused) {
				t.Errorf("%v is a refusal", err)
			}
		}
		return
	}
	dir, mirrors := storeDir(t), t.TempDir()
	lay(t, mirrors, map[string]string{
		"archive/" + demo.Source.String() + "/" + demo.archiveName(): string(archive),
		"file/" + demo.Source.String() + "/" + demo.archiveName():    string(bomb),
	})
	runTest(t, "TestFullDisk", "ATOLL_TEST_FULL="+dir, "ATOLL_TEST_MIRROR="+mirrors)
	if left := tree(t, dir); left != emptyStore {
		t.Errorf("left behind:\n%s", left)
	}
}

func TestStoreOfEverybody(t *testing.T) {
	dir := storeDir(t)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(dir, nil); err == nil || !strings.Contains(err.Error(), "chmod o-w") {
		t.Error(err)
	}
}
