package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRequiredDigests: every combination of required and actual digests.
func TestRequiredDigests(t *testing.T) {
	entries := files()
	archive := pack(t, entries...)
	z, h := zh(archive), h1(t, entries)
	other, otherContent := zh([]byte("another")), h1(t, entries[:1])
	packed, unpacked := packedMirror(t, archive), unpackedMirror(t, entries)
	tests := []struct {
		name    string
		origin  Origin
		digests []Digest
		matched Digest // "" is refused
		says    []string
	}{
		{"the archive's", packed, []Digest{z}, z, nil},
		{"the content's", packed, []Digest{h}, h, nil},
		{"one of many", packed, []Digest{other, otherContent, z}, z, nil},
		{"another archive with the same content", packed, []Digest{other, h}, h, nil},
		{"another archive", packed, []Digest{other}, "", []string{string(z), "the 1 required digests"}},
		{"another content", packed, []Digest{otherContent}, "", []string{string(z), string(h)}},
		{"neither", packed, []Digest{other, otherContent}, "", []string{string(z), string(h)}},
		{"none required", packed, nil, "", []string{string(z), "no digest is required", "if you trust the package"}},
		{"a directory", unpacked, []Digest{h}, h, nil},
		{"a directory, by an archive's", unpacked, []Digest{z}, "", []string{string(h)}},
		{"a directory, none required", unpacked, nil, "", []string{string(h), "no digest is required"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := storeDir(t)
			got, err := New(openStore(t, dir), nil, Limits{}).Install(t.Context(), request(tt.origin, tt.digests...))
			if tt.matched == "" {
				failsWith(t, err, ErrRefused, append(tt.says, demo.String())...)
				if left := tree(t, dir); left != emptyStore {
					t.Errorf("the store has\n%s", left)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Matched != tt.matched || got.Content != h || got.Development || got.Stored || got.Signature.State != SignatureNone {
				t.Errorf("%+v", got)
			}
			if want := (tt.origin == Origin(packed)); (got.Archive == z) != want {
				t.Errorf("the archive is %q", got.Archive)
			}
			const want = "-r--r--r-- LICENSE\ndr-xr-xr-x docs\n-r--r--r-- docs/index.md\n-r-xr-xr-x terraform-provider-demo_v1.2.3\n"
			if got := tree(t, got.Directory); got != want {
				t.Errorf("the package is\n%s", got)
			}
			if out, err := exec.Command(got.Executable).Output(); err != nil || string(out) != "a provider\n" {
				t.Errorf("running it prints %q, %v", out, err)
			}
		})
	}
}

// TestMalformedDigests: malformed digests are rejected before any request is made.
func TestMalformedDigests(t *testing.T) {
	i := New(openStore(t, storeDir(t)), nil, Limits{})
	_, err := i.Install(t.Context(), request(nowhere{t}, zh(nil), "h1:short"))
	failsWith(t, err, ErrInvalid, "h1:short")
}

// TestArchiveIsCheckedBeforeUnpacking: an archive without the required digest is not even opened, however
// malformed it is.
func TestArchiveIsCheckedBeforeUnpacking(t *testing.T) {
	rubbish := []byte("this is no archive")
	i := New(openStore(t, storeDir(t)), nil, Limits{})
	_, err := i.Install(t.Context(), request(packedMirror(t, rubbish), zh([]byte("another"))))
	failsWith(t, err, ErrRefused, string(zh(rubbish)))
	_, err = i.Install(t.Context(), request(packedMirror(t, rubbish), zh(rubbish)))
	failsWith(t, err, ErrRefused, "reading the archive")
}

func TestInstalledOnce(t *testing.T) {
	archive := pack(t, files()...)
	dir := storeDir(t)
	var steps []string
	ask := request(packedMirror(t, archive), zh(archive))
	ask.Progress = func(p StepProgress) {
		if p.Done == p.Total {
			steps = append(steps, p.Step)
		}
	}
	first, err := New(openStore(t, dir), nil, Limits{}).Install(t.Context(), ask)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(steps, " "); got != "copy unpack verify" {
		t.Errorf("the steps were %s", got)
	}
	// A later process requires another of its digests: no origin is contacted.
	for _, digest := range []Digest{first.Archive, first.Content} {
		again, err := New(openStore(t, dir), nil, Limits{}).Install(t.Context(), request(nowhere{t}, digest))
		if err != nil {
			t.Fatal(err)
		}
		want := first
		want.Stored, want.Matched = true, digest
		if again != want {
			t.Errorf("first %+v, then %+v", first, again)
		}
	}
	// A stored package is not used if its digest is no longer required.
	_, err = New(openStore(t, dir), nil, Limits{}).Install(t.Context(), request(packedMirror(t, archive), zh(nil)))
	failsWith(t, err, ErrRefused, string(zh(archive)))
}

// TestSamePackageUnderTwoNames: a package is taken from the store only under the name that it was
// fetched under.
func TestSamePackageUnderTwoNames(t *testing.T) {
	archive := pack(t, files()...)
	i := New(openStore(t, storeDir(t)), nil, Limits{})
	if _, err := i.Install(t.Context(), request(packedMirror(t, archive), zh(archive))); err != nil {
		t.Fatal(err)
	}
	elsewhere := request(FilesystemMirror{t.TempDir()}, zh(archive))
	elsewhere.Package.Platform = Platform{"linux", "arm64"}
	_, err := i.Install(t.Context(), elsewhere)
	failsWith(t, err, ErrNotFound, "linux_arm64")
}

func TestDevelop(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "terraform-provider-demo")
	if err := os.WriteFile(program, []byte(programText), 0o755); err != nil {
		t.Fatal(err)
	}
	got, err := Develop(program)
	want := Installed{Executable: program, Directory: dir, Development: true, Signature: Signature{State: SignatureNone}, From: "development"}
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = Develop("terraform-provider-demo")
	failsWith(t, err, ErrInvalid, "not absolute")
	_, err = Develop(dir)
	failsWith(t, err, ErrInvalid, "is not an executable file")
	_, err = Develop(filepath.Join(dir, "missing"))
	failsWith(t, err, ErrNotFound, "missing")
	if err := os.Chmod(program, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = Develop(program)
	failsWith(t, err, ErrInvalid, "chmod +x")
}

// TestExecutable: which file of a package is the program.
func TestExecutable(t *testing.T) {
	tests := []struct{ files, want string }{ // "" is refused
		{"terraform-provider-demo", "terraform-provider-demo"},
		{"LICENSE terraform-provider-demo_v1.2.3_x5 README.md", "terraform-provider-demo_v1.2.3_x5"},
		{"terraform-provider-demo.exe", "terraform-provider-demo.exe"},
		{"terraform-provider-demo terraform-provider-demofile terraform-provider-demo-beta", "terraform-provider-demo"},
		{"terraform-provider-demo bin/terraform-provider-demo_v2", "terraform-provider-demo"},
		{"terraform-provider-demo terraform-provider-demo.exe", ""},
		{"terraform-provider-demo_v1 terraform-provider-demo_v2", ""},
		{"bin/terraform-provider-demo", ""},
		{"Terraform-Provider-Demo", ""},
		{"terraform-provider-other", ""},
		{"", ""},
	}
	for _, tt := range tests {
		got, err := executable(strings.Fields(tt.files), "demo")
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%q: %q, %v", tt.files, got, err)
		}
	}
}

// TestRealProgram installs a program of tens of megabytes, this test binary itself, and runs it.
func TestRealProgram(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	archive := pack(t, entry{name: "terraform-provider-demo", content: string(program)})
	got, err := New(openStore(t, storeDir(t)), nil, Limits{}).Install(t.Context(), request(packedMirror(t, archive), zh(archive)))
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(got.Executable, "-test.list", "^TestRealProgram$").Output()
	if err != nil || !strings.HasPrefix(string(out), "TestRealProgram\n") {
		t.Errorf("running it prints %q, %v", out, err)
	}
}
