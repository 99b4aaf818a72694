package node

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	imagev1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Image and PauseImage are the names of the images that WriteImages writes. Without arguments, the first one serves HTTP.
const (
	Image      = "playground.atoll.dev/tools:1"
	PauseImage = "playground.atoll.dev/pause:1"
)

// importName is the annotation from which containerd takes the name of an image.
const importName = "io.containerd.image.name"

// WriteImages writes an OCI archive with both images: each starts the static program, with the argument serve or pause. If busybox
// is not empty, it is the file of a static BusyBox, and the images have its applets as /bin/sh and so on.
func WriteImages(file, program, busybox string, applets []string) error {
	layer, err := writeLayer(program, busybox, applets)
	if err != nil {
		return fmt.Errorf("write the image %s: %w", Image, err)
	}
	blobs := map[string][]byte{}
	add := func(mediaType string, content []byte) imagev1.Descriptor {
		d := digest.FromBytes(content)
		blobs[path.Join("blobs", "sha256", d.Encoded())] = content
		return imagev1.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(content))}
	}
	addJSON := func(mediaType string, v any) (imagev1.Descriptor, error) {
		raw, err := json.Marshal(v)
		return add(mediaType, raw), err
	}
	content := add(imagev1.MediaTypeImageLayer, layer)
	index := imagev1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagev1.MediaTypeImageIndex}
	for name, verb := range map[string]string{Image: "serve", PauseImage: "pause"} {
		config, err := addJSON(imagev1.MediaTypeImageConfig, imagev1.Image{
			Platform: imagev1.Platform{OS: "linux", Architecture: runtime.GOARCH},
			Config: imagev1.ImageConfig{
				Entrypoint: []string{"/" + filepath.Base(program)}, Cmd: []string{verb}, Env: []string{"PATH=/bin"}, WorkingDir: "/",
			},
			RootFS: imagev1.RootFS{Type: "layers", DiffIDs: []digest.Digest{content.Digest}}, // the layer is not compressed
		})
		if err != nil {
			return err
		}
		manifest, err := addJSON(imagev1.MediaTypeImageManifest, imagev1.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagev1.MediaTypeImageManifest,
			Config: config, Layers: []imagev1.Descriptor{content},
		})
		if err != nil {
			return err
		}
		manifest.Annotations = map[string]string{importName: name}
		index.Manifests = append(index.Manifests, manifest)
	}
	list, err := json.Marshal(index)
	if err != nil {
		return err
	}
	layout, err := json.Marshal(imagev1.ImageLayout{Version: imagev1.ImageLayoutVersion})
	if err != nil {
		return err
	}
	blobs[imagev1.ImageLayoutFile], blobs[imagev1.ImageIndexFile] = layout, list
	return writeArchive(file, blobs)
}

func writeArchive(file string, content map[string][]byte) (err error) {
	out, err := os.OpenFile(file, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if closed := out.Close(); err == nil {
			err = closed
		}
	}()
	archive := tar.NewWriter(out)
	for name, raw := range content {
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(raw))}); err != nil {
			return err
		}
		if _, err := archive.Write(raw); err != nil {
			return err
		}
	}
	return archive.Close()
}

// writeLayer returns a layer with the files of the image.
func writeLayer(program, busybox string, applets []string) ([]byte, error) {
	var layer bytes.Buffer
	archive := tar.NewWriter(&layer)
	for _, dir := range []struct {
		name string
		mode int64
	}{{"bin", 0o755}, {"etc", 0o755}, {"tmp", 0o1777}, {"root", 0o755}} {
		if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir.name + "/", Mode: dir.mode}); err != nil {
			return nil, err
		}
	}
	if err := addProgram(archive, filepath.Base(program), program); err != nil {
		return nil, err
	}
	if busybox != "" {
		if err := addProgram(archive, "bin/busybox", busybox); err != nil {
			return nil, err
		}
		for _, applet := range applets {
			if applet == "busybox" {
				continue // it is the program itself
			}
			if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox"}); err != nil {
				return nil, err
			}
		}
	}
	return layer.Bytes(), archive.Close()
}

func addProgram(archive *tar.Writer, name, file string) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(archive, in)
	return err
}
