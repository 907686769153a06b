package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/control"
	"github.com/eqvps/eqvps/node"
)

const description = `Linux machines for code nobody has read: a microVM each, ready in a fraction of a second.

Without EQVPS_BASE_URL and EQVPS_API_KEY, commands talk to the server on this machine through its socket in the data folder.`

// grammar is the whole command line. Every field's help is what people read.
type grammar struct {
	Data   string `env:"EQVPS_DATA" default:"${data}" placeholder:"DIR" help:"Data folder of the server on this machine (default ${data})."`
	Images string `env:"EQVPS_IMAGES" placeholder:"DIR" help:"Image store of the server on this machine (default DATA/images)."`

	Run     runCmd     `cmd:"" help:"Run a file or a command in a fresh sandbox and delete it. Needs nothing prepared."`
	Serve   serveCmd   `cmd:"" help:"Run the server."`
	Sandbox sandboxCmd `cmd:"" help:"Create, use and delete sandboxes."`
	Task    taskCmd    `cmd:"" help:"Run commands in the background of a sandbox."`
	Image   imageCmd   `cmd:"" help:"Build and check the images that sandboxes start from."`
	Secret  secretCmd  `cmd:"" help:"Keep secrets on the server for sandboxes to have as variables."`
	Token   tokenCmd   `cmd:"" help:"Create, list and revoke access tokens."`
	Drain   drainCmd   `cmd:"" help:"Ready the server for a stop of its host: pause the persistent sandboxes, take no new ones."`
	Doctor  doctorCmd  `cmd:"" help:"Check what this machine offers and what is missing."`
	Bench   benchCmd   `cmd:"" help:"Measure this host against the bars that the project sets itself."`
	Version versionCmd `cmd:"" help:"Print the version."`
}

type sandboxCmd struct {
	Create   createCmd   `cmd:"" help:"Start a sandbox and print its id."`
	List     listCmd     `cmd:"" help:"List sandboxes, newest first."`
	Get      getCmd      `cmd:"" help:"Show one sandbox and what it has used."`
	Exec     execCmd     `cmd:"" help:"Run a command in a sandbox."`
	Upload   uploadCmd   `cmd:"" help:"Copy a file into a sandbox."`
	Download downloadCmd `cmd:"" help:"Copy a file out of a sandbox."`
	Ls       lsCmd       `cmd:"" help:"List a folder of a sandbox."`
	Mkdir    mkdirCmd    `cmd:"" help:"Make a folder in a sandbox."`
	Mv       mvCmd       `cmd:"" help:"Move or rename a file of a sandbox."`
	Rm       rmCmd       `cmd:"" help:"Remove files of a sandbox."`
	Link     linkCmd     `cmd:"" help:"Print a signed link to one file of a sandbox."`
	Env      envCmd      `cmd:"" help:"List, set and remove the variables of a sandbox."`
	Events   eventsCmd   `cmd:"" help:"Show what happened to a sandbox."`
	Network  networkCmd  `cmd:"" help:"Change what a sandbox may reach."`
	Extend   extendCmd   `cmd:"" help:"Let a sandbox live longer."`
	Pause    pauseCmd    `cmd:"" help:"Pause persistent sandboxes: they cost nothing until they are resumed."`
	Resume   resumeCmd   `cmd:"" help:"Resume paused sandboxes where they were."`
	Kill     killCmd     `cmd:"" help:"Delete sandboxes."`
}

type imageCmd struct {
	Build  imageBuildCmd  `cmd:"" help:"Build an image; the one that is there already costs nothing."`
	List   imageListCmd   `cmd:"" help:"List the images, newest first."`
	Verify imageVerifyCmd `cmd:"" help:"Compare every byte of an image with what was built."`
	Rm     imageRmCmd     `cmd:"" help:"Delete images."`
}

type secretCmd struct {
	Set       secretSetCmd       `cmd:"" help:"Add a secret or replace its value."`
	List      secretListCmd      `cmd:"" help:"List the secrets of this account, without their values."`
	Rm        secretRmCmd        `cmd:"" help:"Delete secrets; sandboxes that have them keep them."`
	RotateKey secretRotateKeyCmd `cmd:"" help:"Replace the server's key and encrypt everything anew; for the administrator."`
}

type tokenCmd struct {
	Create tokenCreateCmd `cmd:"" help:"Create a token and print its secret, once."`
	List   tokenListCmd   `cmd:"" help:"List the tokens of this account."`
	Revoke tokenRevokeCmd `cmd:"" help:"Revoke tokens at once."`
}

// grammarVars are what the help texts quote.
func grammarVars() map[string]string {
	var tariffs []string
	for _, t := range eqvps.DefaultTariffs {
		tariffs = append(tariffs, t.Name)
	}
	return map[string]string{
		"data":       defaultData,
		"listen":     defaultListen,
		"standby":    fmt.Sprint(defaultStandby),
		"tariffs":    strings.Join(tariffs, ", "),
		"tariff":     eqvps.DefaultTariff,
		"burst":      node.DefaultBurst.String(),
		"overcpu":    fmt.Sprint(node.DefaultOvercommit.CPU),
		"overmemory": fmt.Sprint(node.DefaultOvercommit.Memory),
		"overdisk":   fmt.Sprint(node.DefaultOvercommit.Disk),
		"cpuabuse":   control.DefaultCPUAbuseWindow.String(),
		"maxexec":    seconds(eqvps.MaxExecTimeout),
		"exec":       seconds(eqvps.DefaultExecTimeout),
		"maxstdin":   fmt.Sprintf("%d MiB", eqvps.MaxStdinBytes>>20),
	}
}

func seconds(d time.Duration) string { return fmt.Sprint(int(d.Seconds())) }

type versionCmd struct{}

func (versionCmd) Run(a *app) error {
	_, err := fmt.Fprintln(a.stdout, "eqvps", eqvps.Version)
	return err
}
