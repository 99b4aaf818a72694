// Program terraform-provider-demo is a provider on terraform-plugin-framework (protocol 6). It
// creates files in a directory (see package world). Together its types use every feature of schemas
// and providers.
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
