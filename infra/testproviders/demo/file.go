package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"

	"github.com/atoll-dev/atoll/infra/testproviders/world"
)

// newFile returns demo_file: a file below files/ of the world. Any editor can cause drift.
func newFile() resource.Resource {
	return &common{kind: kind{
		name: "file",
		schema: schema.Schema{
			Description: "A file.",
			Attributes: withName(map[string]schema.Attribute{
				"content": schema.StringAttribute{Required: true, Description: "The content of the file."},
				"mode": schema.StringAttribute{Optional: true, Computed: true, Default: stringdefault.StaticString("0644"), Description: "The file mode, in octal.",
					Validators: []validator.String{matches{regexp.MustCompile(`^0[0-7]{3}$`), "a zero and three octal digits"}}},
				"path": schema.StringAttribute{Computed: true, Description: "The path of the file.",
					PlanModifiers: []planmodifier.String{keptUnless{"name"}}},
				"sha256": schema.StringAttribute{Computed: true, Description: "The SHA-256 of the content.",
					PlanModifiers: []planmodifier.String{keptUnless{"content"}}},
			}),
		},
		complete: writeFile,
		refresh:  readFile,
		remove: func(w *world.World, now attributes) error {
			return removeFile(filePath(w, now.text("name")))
		},
	}}
}

func filePath(w *world.World, name string) string { return filepath.Join(w.Dir(), "files", name) }

func writeFile(c *change) diag.Diagnostics {
	var diagnostics diag.Diagnostics
	at := filePath(c.world, c.next.text("name"))
	mode, err := strconv.ParseUint(c.next.text("mode"), 8, 32)
	if err != nil {
		diagnostics.AddAttributeError(path.Root("mode"), "The mode is not octal", err.Error())
		return diagnostics
	}
	draft := filepath.Join(filepath.Dir(at), ".draft-"+c.id)
	err = os.WriteFile(draft, []byte(c.next.text("content")), 0o600)
	if err == nil {
		err = os.Chmod(draft, fs.FileMode(mode))
	}
	if err == nil {
		err = os.Rename(draft, at)
	}
	if err == nil && c.prior != nil && c.next.changed(c.prior, "name") {
		err = removeFile(filePath(c.world, c.prior.text("name")))
	}
	if err != nil {
		diagnostics.AddAttributeError(path.Root("name"), "The file cannot be written", err.Error())
	}
	c.next.set("path", at)
	c.next.set("sha256", digest(c.next.text("content")))
	return diagnostics
}

func removeFile(at string) error {
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func readFile(w *world.World, now attributes) (there bool, err error) {
	at := filePath(w, now.text("name"))
	content, err := os.ReadFile(at)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	info, err := os.Stat(at)
	if err != nil {
		return false, err
	}
	now.set("content", string(content))
	now.set("mode", fmt.Sprintf("%04o", info.Mode().Perm()))
	now.set("path", at)
	now.set("sha256", digest(string(content)))
	return true, nil
}

func digest(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}
