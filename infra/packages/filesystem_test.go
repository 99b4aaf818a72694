package packages

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestLayouts: directory layouts of a mirror, and the packages found in them.
func TestLayouts(t *testing.T) {
	tests := []struct{ name, files, want string }{
		{"nothing", ``, `none`},
		{"packed", `
			tf.example.com/acme/demo/terraform-provider-demo_1.2.3_linux_amd64.zip
			tf.example.com/acme/demo/terraform-provider-demo_1.2.3_darwin_arm64.zip
			tf.example.com/acme/demo/terraform-provider-demo_1.10.0_linux_amd64.zip
			tf.example.com/acme/demo/1.2.3.json
			tf.example.com/acme/demo/index.json`, `
			1.2.3 linux_amd64: archive tf.example.com/acme/demo/terraform-provider-demo_1.2.3_linux_amd64.zip
			1.2.3 darwin_arm64: archive tf.example.com/acme/demo/terraform-provider-demo_1.2.3_darwin_arm64.zip
			1.10.0 linux_amd64: archive tf.example.com/acme/demo/terraform-provider-demo_1.10.0_linux_amd64.zip
			1.10.0 darwin_arm64: none`},
		{"unpacked", `
			tf.example.com/acme/demo/1.2.3/linux_amd64/terraform-provider-demo
			tf.example.com/acme/demo/2.0.0-rc1/darwin_arm64/terraform-provider-demo`, `
			1.2.3 linux_amd64: directory tf.example.com/acme/demo/1.2.3/linux_amd64
			1.2.3 darwin_arm64: none
			2.0.0-rc1 linux_amd64: none
			2.0.0-rc1 darwin_arm64: directory tf.example.com/acme/demo/2.0.0-rc1/darwin_arm64`},
		{"both: the archive", `
			tf.example.com/acme/demo/1.2.3/linux_amd64/terraform-provider-demo
			tf.example.com/acme/demo/terraform-provider-demo_1.2.3_linux_amd64.zip`, `
			1.2.3 linux_amd64: archive tf.example.com/acme/demo/terraform-provider-demo_1.2.3_linux_amd64.zip
			1.2.3 darwin_arm64: none`},
		{"archives in other letters", `
			tf.example.com/acme/demo/Terraform-Provider-Demo_1.2.3_Linux_AMD64.ZIP`, `
			1.2.3 linux_amd64: archive tf.example.com/acme/demo/Terraform-Provider-Demo_1.2.3_Linux_AMD64.ZIP
			1.2.3 darwin_arm64: none`},
		{"other things", `
			tf.example.com/acme/demo/terraform-provider-other_1.2.3_linux_amd64.zip
			tf.example.com/acme/demo/terraform-provider-demo_1.2_linux_amd64.zip
			tf.example.com/acme/demo/terraform-provider-demo_1.2.3_linux.zip
			tf.example.com/acme/demo/terraform-provider-demo_1.2.3_linux_amd64_v1.zip
			tf.example.com/acme/demo/terraform-provider-demo_1.2.3_linux_amd64.tgz
			tf.example.com/acme/demo/terraform-provider-demo_1.2.3_linux_amd64.zip/a directory
			tf.example.com/acme/demo/1.2.3/linux_amd64
			tf.example.com/acme/demo/latest/linux_amd64/terraform-provider-demo
			tf.example.com/acme/demo/1.2.3/linux/terraform-provider-demo
			other.example.com/acme/demo/terraform-provider-demo_1.2.3_linux_amd64.zip`, `none`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir, files := t.TempDir(), map[string]string{}
			for line := range strings.Lines(tt.files) {
				if name := strings.TrimSpace(line); name != "" {
					files[name] = "x"
				}
			}
			lay(t, dir, files)
			if got, want := describeMirror(t, FilesystemMirror{dir}), unindent(tt.want); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func unindent(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

func describeMirror(t *testing.T, m FilesystemMirror) string {
	versions, err := m.Versions(t.Context(), demo.Source)
	if err != nil {
		failsWith(t, err, ErrNotFound, m.Directory, demo.Source.String())
		return "none"
	}
	var lines []string
	for _, v := range versions {
		for _, platform := range []Platform{{"linux", "amd64"}, {"darwin", "arm64"}} {
			found, err := m.Find(t.Context(), Package{demo.Source, v, platform})
			what := "none"
			switch {
			case err != nil:
				failsWith(t, err, ErrNotFound, string(v), platform.String())
			case found.Archive != "":
				what = "archive " + found.Archive
			default:
				what = "directory " + found.Directory
			}
			lines = append(lines, fmt.Sprintf("%s %s: %s", v, platform, what))
		}
	}
	return strings.Join(lines, "\n")
}

// TestMirrorLinks: links may lead around within a mirror, and to it, but not out of it.
func TestMirrorLinks(t *testing.T) {
	archive := pack(t, files()...)
	mirror := packedMirror(t, archive)
	outside := packedMirror(t, archive)
	name := filepath.Join(mirror.Directory, demo.Source.String(), demo.archiveName())
	install := func(m FilesystemMirror) error {
		_, err := New(openStore(t, storeDir(t)), nil, Limits{}).Install(t.Context(), request(m, zh(archive)))
		return err
	}
	if err := os.Rename(name, name+".real"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Base(name)+".real", name); err != nil {
		t.Fatal(err)
	}
	if err := install(mirror); err != nil {
		t.Error("a link within:", err)
	}
	link := filepath.Join(t.TempDir(), "mirror")
	if err := os.Symlink(mirror.Directory, link); err != nil {
		t.Fatal(err)
	}
	if err := install(FilesystemMirror{link}); err != nil {
		t.Error("a link to it:", err)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(outside.Directory, demo.Source.String(), demo.archiveName()), name); err != nil {
		t.Fatal(err)
	}
	failsWith(t, install(mirror), ErrNotFound)
}

// TestOriginsValidate: everything that becomes a path or an address is validated first.
func TestOriginsValidate(t *testing.T) {
	client := NewClient(ClientConfig{})
	network, err := NewNetworkMirror(client, "https://mirror.example.com")
	if err != nil {
		t.Fatal(err)
	}
	bad := []Package{
		{Address{"..", "acme", "demo"}, demo.Version, demo.Platform},
		{Address{"tf.example.com", "../../etc", "demo"}, demo.Version, demo.Platform},
		{Address{"tf.example.com", "acme", ""}, demo.Version, demo.Platform},
		{demo.Source, "../1.2.3", demo.Platform},
		{demo.Source, "1.2.3", Platform{"..", "/"}},
	}
	for _, origin := range []Origin{FilesystemMirror{t.TempDir()}, network, NewRegistry(client)} {
		for _, p := range bad {
			_, err := origin.Find(t.Context(), p)
			failsWith(t, err, ErrInvalid)
			if p.Source != demo.Source {
				_, err := origin.Versions(t.Context(), p.Source)
				failsWith(t, err, ErrInvalid)
			}
			_, err = New(openStore(t, storeDir(t)), client, Limits{}).Install(t.Context(), Request{Package: p, Origin: nowhere{t}})
			failsWith(t, err, ErrInvalid)
		}
	}
	if !slices.Equal(sortVersions(nil), []Version(nil)) {
		t.Error("no versions are none")
	}
}
