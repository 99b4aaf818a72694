package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// BuildImages builds the program of the images with go, in the repository's root, and writes the images to dir. They have a shell
// and tar if this machine has a static BusyBox (Debian's busybox-static). It returns the file.
func BuildImages(ctx context.Context, dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "tools")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "github.com/atoll-dev/atoll/playground/tools")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program of %s with go, in the repository's root: %w: %s", Image, err, bytes.TrimSpace(out))
	}
	busybox, applets := "", []string(nil)
	if found, err := exec.LookPath("busybox"); err == nil {
		out, err := exec.CommandContext(ctx, found, "--list").Output()
		if err != nil {
			return "", fmt.Errorf("list the commands of %s: %w", found, err)
		}
		busybox, applets = found, strings.Fields(string(out))
	}
	file := filepath.Join(dir, "tools.tar")
	return file, WriteImages(file, program, busybox, applets)
}
