package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// tofuVersion is the OpenTofu that Atoll is compared with.
const tofuVersion = "github.com/opentofu/opentofu@v1.12.6"

// tofuProgram returns the path of the tofu binary. Without a name it builds one, which takes ten minutes on two cores. OpenTofu
// is not in our go.mod, and `go install` with its path fails, because its go.mod has a replace directive.
func tofuProgram(ctx context.Context, named, dir string) (string, error) {
	if named != "" {
		return filepath.Abs(named)
	}
	fmt.Fprintln(os.Stderr, "building OpenTofu, which takes about ten minutes; use -tofu FILE to name an existing binary")
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", tofuVersion)
	download.Dir = dir
	output, err := download.Output()
	if err != nil {
		return "", fmt.Errorf("download %s: %w: %s", tofuVersion, err, output)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(output, &module); err != nil {
		return "", fmt.Errorf("download %s: %w", tofuVersion, err)
	}
	out := filepath.Join(dir, "tofu")
	build := exec.CommandContext(ctx, "go", "-C", module.Dir, "build", "-o", out, "./cmd/tofu")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("build OpenTofu: %w", err)
	}
	return out, nil
}

// buildProviders builds test providers into a mirror.
func buildProviders(ctx context.Context, mirror, only string) ([]builtProvider, error) {
	build := exec.CommandContext(ctx, "go", "-C", filepath.Join("infra", "testproviders"), "run", "./mirror", "-dir", mirror, "-only", only)
	build.Stderr = os.Stderr
	out, err := build.Output()
	if err != nil {
		return nil, fmt.Errorf("build the providers (run this in the repository's root): %w", err)
	}
	var built []builtProvider
	if err := json.Unmarshal(out, &built); err != nil {
		return nil, fmt.Errorf("read the list of built providers: %s: %w", out, err)
	}
	if len(built) == 0 {
		return nil, errors.New("no provider was built")
	}
	return built, nil
}
