package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/dirhash"
)

// TestMirror builds all four providers, starts them, and builds one of them again.
func TestMirror(t *testing.T) {
	dir := t.TempDir()
	names := []string{"demo", "demo5", "evil", "wide"}
	all := buildAll(t, dir, names)
	for i, p := range all {
		checkDigests(t, p)
		want := "1|6|"
		if names[i] == "demo5" {
			want = "1|5|"
		}
		if line := handshake(t, filepath.Join(p.Unpacked, "terraform-provider-"+names[i]+"_v1.0.0")); !strings.HasPrefix(line, want) || !strings.Contains(line, "|grpc|") {
			t.Errorf("%s says %q", p.Source, line)
		}
		if others, err := os.ReadDir(p.Unpacked); err != nil || len(others) != 1 {
			t.Errorf("more files than the executable of %s: %v, %v", p.Source, others, err)
		}
	}
	before, err := os.Stat(all[0].Packed)
	if err != nil {
		t.Fatal(err)
	}
	again := buildAll(t, dir, names[:1])
	after, err := os.Stat(all[0].Packed)
	if err != nil || !after.ModTime().Equal(before.ModTime()) || again[0] != all[0] {
		t.Errorf("the second build differs: %+v, %+v (%v)", all[0], again[0], err)
	}
}

func buildAll(t *testing.T, dir string, names []string) (all []Provider) {
	t.Helper()
	var out bytes.Buffer
	if err := run(dir, names, &out); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &all); err != nil || len(all) != len(names) {
		t.Fatalf("%d providers (%v): %s", len(all), err, out.Bytes())
	}
	return all
}

// checkDigests compares h1 with Go's own module checksums.
func checkDigests(t *testing.T, p Provider) {
	t.Helper()
	zipped, err := dirhash.HashZip(p.Packed, dirhash.Hash1)
	if err != nil {
		t.Fatal(err)
	}
	unpacked, err := dirhash.HashDir(p.Unpacked, "", dirhash.Hash1)
	if err != nil {
		t.Fatal(err)
	}
	if zipped != p.H1 || unpacked != p.H1 || !strings.HasPrefix(p.ZH, "zh:") {
		t.Errorf("%s has digests %s and %s; its zip is %s, its directory %s", p.Source, p.ZH, p.H1, zipped, unpacked)
	}
}

// handshake starts a provider like a host, and reads its address.
func handshake(t *testing.T, executable string) string {
	t.Helper()
	provider := exec.Command(executable)
	provider.Env = []string{"TF_PLUGIN_MAGIC_COOKIE=d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2", "PLUGIN_PROTOCOL_VERSIONS=5,6"}
	out, err := provider.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := provider.Start(); err != nil {
		t.Fatal(err)
	}
	defer provider.Wait() // reports that it was killed
	defer provider.Process.Kill()
	line := make([]byte, 1024)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	return string(line[:n])
}

func TestItSaysWhatIsWrong(t *testing.T) {
	if err := run("", nil, nil); err == nil || !strings.Contains(err.Error(), "-dir") {
		t.Errorf("without a directory: %v", err)
	}
	if err := run(t.TempDir(), []string{"none"}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("for an unknown provider: %v", err)
	}
}
