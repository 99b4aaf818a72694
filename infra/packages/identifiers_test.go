package packages

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestParseAddress(t *testing.T) {
	tests := []struct{ given, want string }{ // "" is refused
		{"time", "registry.example.com/hashicorp/time"},
		{"hashicorp/time", "registry.example.com/hashicorp/time"},
		{"Acme/Demo", "registry.example.com/acme/demo"},
		{"TF.Example.com/acme/google-beta", "tf.example.com/acme/google-beta"},
		{"tf.example.com:8443/acme/demo", "tf.example.com:8443/acme/demo"},
		{"tf.example.com:443/acme/demo", "tf.example.com/acme/demo"},
		{"localhost:9000/acme/demo", "localhost:9000/acme/demo"},
		{"xn--bcher-kva.example/acme/demo", "xn--bcher-kva.example/acme/demo"},
		{"bücher.example/acme/demo", ""},
		{"tf.example.com/acme/dеmo", ""}, // a Cyrillic е
		{"acme/\u212Aelvin", ""},         // a character whose lower case is k
		{"", ""},
		{"/acme/demo", ""},
		{"acme/", ""},
		{"a/b/c/d", ""},
		{"tf.example.com/../demo", ""},
		{"../acme/demo", ""},
		{"tf..example.com/acme/demo", ""},
		{"tf.example.com:0/acme/demo", ""},
		{"tf.example.com:080/acme/demo", ""},
		{"tf.example.com:99999/acme/demo", ""},
		{"user@tf.example.com/acme/demo", ""},
		{"tf.example.com/-/demo", ""},
		{"tf.example.com/acme/a--b", ""},
		{"tf.example.com/acme/de_mo", ""},
		{"tf.example.com/acme/demo.exe", ""},
		{`tf.example.com/acme\x/demo`, ""},
		{"tf.example.com/acme/demo\x00", ""},
		{"acme/terraform-provider-demo", ""},
		{"acme/terraform-demo", ""},
		{"acme/opentofu-demo", ""},
		{"acme/" + strings.Repeat("a", 64), ""},
		{strings.Repeat("a.", 130) + "com/acme/demo", ""},
	}
	for _, tt := range tests {
		got, err := ParseAddress(tt.given, "Registry.Example.com")
		if tt.want == "" {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%q: %v, %v", tt.given, got, err)
			}
			continue
		}
		if err != nil || got.String() != tt.want {
			t.Errorf("%q: %v, %v", tt.given, got, err)
		}
		if again, err := ParseAddress(got.String(), "elsewhere.example.com"); err != nil || again != got {
			t.Errorf("%q: read again it is %v, %v", tt.given, again, err)
		}
	}
}

func TestParseVersion(t *testing.T) {
	for _, good := range []string{"1.2.3", "0.0.0", "10.20.30-beta.1", "1.2.3+build.5", "1.2.3-rc1+build"} {
		if v, err := ParseVersion(good); err != nil || string(v) != good {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "1", "1.2", "v1.2.3", "1.2.3.4", "01.2.3", "~> 1.2.3", "1.2.3 ", "1.2.3-", "1.2.3-a/b", "1.2.3+..", "latest", "1.2.3-" + strings.Repeat("a", 200)} {
		if v, err := ParseVersion(bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %q, %v", bad, v, err)
		}
	}
	got := sortVersions([]Version{"1.10.0", "1.9.0", "1.10.0-rc1", "1.9.0", "1.9.0+b", "1.9.0+a"})
	if want := []Version{"1.9.0", "1.9.0+a", "1.9.0+b", "1.10.0-rc1", "1.10.0"}; !slices.Equal(got, want) {
		t.Errorf("sorted: %v", got)
	}
}

func TestParsePlatform(t *testing.T) {
	if p, err := ParsePlatform("linux_arm64"); err != nil || p != (Platform{"linux", "arm64"}) {
		t.Errorf("%v, %v", p, err)
	}
	for _, bad := range []string{"", "linux", "linux_", "_amd64", "linux_amd64_v1", "linux/amd64", "../_x", "Linux_amd64", "linux_amd 64"} {
		if p, err := ParsePlatform(bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v, %v", bad, p, err)
		}
	}
}

func TestParseDigest(t *testing.T) {
	hexadecimal := strings.Repeat("0a", 32)
	base64 := "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
	for _, good := range []string{"zh:" + hexadecimal, "h1:" + base64} {
		if d, err := ParseDigest(good); err != nil || string(d) != good || newDigest(good[:3], d.sum()) != d {
			t.Errorf("%q: %v", good, err)
		}
	}
	// Only one encoding is valid, because digests are compared as strings.
	for _, bad := range []string{"", "zh:", "h1:", hexadecimal, "zh:" + hexadecimal[2:], "zh:" + hexadecimal + "00", "zh:" + strings.ToUpper(hexadecimal),
		"h1:" + hexadecimal, "h1:" + base64[:43], "h1:" + strings.Replace(base64, "U=", "V=", 1), "h1:" + base64 + "\n", "sha256:" + hexadecimal, "zh:" + base64} {
		if d, err := ParseDigest(bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %q, %v", bad, d, err)
		}
	}
}
