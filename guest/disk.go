package guest

// The serial numbers by which the agent finds its disks.
const (
	BaseDisk  = "base"  // the image's root file system, read-only, shared by all
	UpperDisk = "upper" // the machine's own writable disk, ext4
)
