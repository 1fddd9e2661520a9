/* batch_7.cu: batch.cu for compute capability 7.5, by m8n8k16: any number of columns, 32 at a time, in one stage. */
#define BATCH_OLD
#include "batch.cu"
