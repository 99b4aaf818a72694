package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/infra/cliview"
)

func newExportCommand() *cobra.Command {
	var (
		c           infraCommand
		how         cliview.ExportOptions
		file, after string
	)
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Export a state file for OpenTofu",
		Long: `Export the state of a namespace's resources to a state file for OpenTofu and Terraform,
with the addresses that the resources had when they were imported from there. Nothing
is changed.

Like any state file, it contains secrets.`,
		Example: `  atoll export -n shop > terraform.tfstate
  atoll export -n shop --after terraform.tfstate -f terraform.tfstate`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if after != "" {
				before, err := os.Open(after)
				if err != nil {
					return fmt.Errorf("--after: %w", err)
				}
				defer before.Close()
				how.After = before
			}
			s, err := c.session(cmd)
			if err != nil {
				return err
			}
			if file == "" || file == "-" {
				return s.ExportState(cmd.Context(), s.Out, &how)
			}
			return writeFileAtomically(file, func(w io.Writer) error { return s.ExportState(cmd.Context(), w, &how) })
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&file, "filename", "f", "", "File to write, readable only by its owner. The default is standard output.")
	flags.StringVar(&after, "after", "", "Previous state file, from which to take the lineage, the serial (incremented) and the outputs. By default the export starts a new lineage.")
	flags.StringArrayVar(&how.Providers, "provider", nil, "Address of a provider's configuration, as in hashicorp/aws.west=aws/west. The default is the one that a resource was imported with, or the source of its Provider. Can be repeated.")
	c.addFlags(flags)
	return cmd
}

// writeFileAtomically writes a file atomically, readable only by its owner.
func writeFileAtomically(name string, write func(io.Writer) error) (err error) {
	draft, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(draft.Name()))
		}
	}()
	if err := errors.Join(write(draft), draft.Sync(), draft.Close()); err != nil {
		return err
	}
	return os.Rename(draft.Name(), name)
}
