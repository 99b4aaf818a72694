// Program terraform-provider-demo is a provider on terraform-plugin-framework (protocol 6). What it
// makes are files in a directory (see package world). Its types cover together what a
// schema can say and what a provider can do.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
)

func main() {
	if err := providerserver.Serve(context.Background(), New, providerserver.ServeOpts{Address: "providers.test/atoll/demo"}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
