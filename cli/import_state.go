package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/atoll-dev/atoll/infra/cliview"
)

// stateFile is a state file to import, with its options.
type stateFile struct {
	file string
	cliview.StateImport
}

// stateFileFlags require -f.
var stateFileFlags = []string{"dry-run", "prefix", "provider", "data", "literals"}

func (f *stateFile) addFlags(flags *pflag.FlagSet) {
	flags.StringVarP(&f.file, "filename", "f", "", "OpenTofu or Terraform state file to import completely; - is standard input.")
	flags.BoolVar(&f.DryRun, "dry-run", false, "With -f: show what would be created, without creating it. -o yaml prints manifests.")
	flags.StringVar(&f.Prefix, "prefix", "", "With -f: prefix of all object names.")
	flags.StringArrayVar(&f.Providers, "provider", nil, "With -f: Provider and ProviderConfig for a provider's configuration, as in hashicorp/aws.west=aws/west. The default is the Provider with that source, and the ProviderConfig with the alias' name. Can be repeated.")
	flags.BoolVar(&f.Data, "data", false, "With -f: also import data sources.")
	flags.BoolVar(&f.Literals, "literals", false, "With -f: write all values as literals, without recovering references.")
}

func (f *stateFile) run(cmd *cobra.Command, c *infraCommand) error {
	if c.output != "" && c.output != "yaml" || c.output == "yaml" && !f.DryRun {
		return fmt.Errorf("-o %s is not supported with -f: use --dry-run -o yaml, which prints manifests", c.output)
	}
	if set := changedFlags(cmd.Flags(), "name", "wait", "timeout", "detailed-exitcode"); len(set) > 0 {
		return fmt.Errorf("%s applies only to the import of one resource: omit it, and run `%s plan` afterwards", set[0], cmd.Root().CommandPath())
	}
	f.Format = c.output
	close, err := f.open(cmd.InOrStdin())
	if err != nil {
		return err
	}
	defer close()
	s, err := c.session(cmd)
	if err != nil {
		return err
	}
	return s.ImportState(cmd.Context(), &f.StateImport)
}

// open opens the file for repeated reading.
func (f *stateFile) open(in io.Reader) (func(), error) {
	if f.file == "-" {
		text, err := io.ReadAll(in)
		if err != nil {
			return nil, fmt.Errorf("read the state from standard input: %w", err)
		}
		f.Source, f.Size = bytes.NewReader(text), int64(len(text))
		return func() {}, nil
	}
	file, err := os.Open(f.file)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a directory: pass the state file in it; with a remote backend, `tofu state pull` prints it", f.file)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	f.Source, f.Size = file, info.Size()
	return func() { file.Close() }, nil
}

// importOne imports one resource into an object.
func importOne(c *infraCommand, wait *planFlags, cmd *cobra.Command, args []string) error {
	if set := changedFlags(cmd.Flags(), stateFileFlags...); len(set) > 0 {
		return fmt.Errorf("%s applies only to the import of a state file: set one with -f", set[0])
	}
	s, err := c.session(cmd)
	if err != nil {
		return err
	}
	return wait.run(cmd.Context(), c.output, func(ctx context.Context, how cliview.PlanOptions) (bool, error) {
		return s.Import(ctx, args[0], args[1], args[2], wait.name, how)
	})
}
