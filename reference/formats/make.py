"""Makes tests/data/formats with the official libraries: python make.py FOLDER

Made with torch 2.9.1, safetensors 0.8.0, onnx 1.22.0, gguf 0.19.0, numpy 2.4.6.
"""
import sys, os, io, tarfile, zipfile
import numpy as np, torch
from safetensors.torch import save_file
import safetensors
out=sys.argv[1]
torch.manual_seed(0)
base=torch.arange(24,dtype=torch.float32)/8-1
sd={
 'matrix': base.reshape(4,6).clone(),
 'transposed': base.reshape(4,6).clone().t(),
 'slice': base.reshape(2,3,4)[:,1:,::2],
 'offset': base[5:9],
 'expanded': torch.tensor([[1.5],[2.5]]).expand(2,3),
 'scalar': torch.tensor(3.25),
 'empty': torch.zeros(0,3),
 'half': torch.tensor([1.5,-2.0,65504.0,6e-8],dtype=torch.float16),
 'bfloat16': torch.tensor([1.5,-2.0,3e38],dtype=torch.bfloat16),
 'double': torch.tensor([0.1,-1e300],dtype=torch.float64),
 'long': torch.tensor([2**40,-1]),
 'int': torch.tensor([7,-8],dtype=torch.int32),
 'short': torch.tensor([7,-8],dtype=torch.int16),
 'char': torch.tensor([7,-8],dtype=torch.int8),
 'byte': torch.tensor([7,255],dtype=torch.uint8),
 'bool': torch.tensor([True,False]),
 'uint16': torch.tensor([65535,1],dtype=torch.uint16),
 'f8_e4m3': torch.tensor([1.0,-448.0,0.002],dtype=torch.float8_e4m3fn),
 'f8_e5m2': torch.tensor([1.0,-57344.0,1e-5],dtype=torch.float8_e5m2),
}
sd['tied']=sd['matrix']
torch.save(sd,out+'/state_dict.pt')
save_file({k:v.clone(memory_format=torch.contiguous_format) if v.dim() else v.clone() for k,v in sd.items()},out+'/state_dict.safetensors')
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv=torch.nn.Conv1d(2,3,2)
        self.register_buffer('table',torch.arange(3))
        self.tied=self.conv
    def forward(self,x):
        return self.conv(x)+self.table.sum()
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks=torch.nn.ModuleList([Block(),Block()])
        self.scale=torch.nn.Parameter(torch.tensor([2.0]))
        self.sizes=[8000,16000]
    def forward(self,x):
        for b in self.blocks: x=b(x)
        return x*self.scale
net=Net().eval()
class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block=Block(); self.scale=torch.nn.Parameter(torch.tensor([2.0])); self.sizes=[8000,16000]
    def forward(self,x):
        return self.block(x)*self.scale
net=Small().eval()
torch.jit.script(net).save(out+'/script.jit')
save_file({k:v.clone() for k,v in net.state_dict().items()},out+'/module.safetensors')
ck={'epoch':3,'state_dict':net.state_dict(),'hyper_parameters':{'rates':[2,8],'name':'tiny','lr':1e-3,'flag':True,'none':None,'big':2**70},'optimizer_states':[{'state':{0:{'exp_avg':torch.ones(2)}}}]}
torch.save(ck,out+'/checkpoint.ckpt')
# the whole module, pickled
import __main__
Small.__module__='somewhere.net'; Block.__module__='somewhere.net'
import types; m=types.ModuleType('somewhere.net'); m.Small=Small; m.Block=Block; sys.modules['somewhere']=types.ModuleType('somewhere'); sys.modules['somewhere.net']=m
torch.save(net,out+'/module.pt')
# protocol 4
torch.save({'w':torch.arange(3.)},out+'/protocol4.pt',pickle_protocol=4)
# deflated zip
src=zipfile.ZipFile(out+'/checkpoint.ckpt')
with zipfile.ZipFile(out+'/deflated.ckpt','w',zipfile.ZIP_DEFLATED) as z:
    for n in src.namelist(): z.writestr(zipfile.ZipInfo(n),src.read(n),zipfile.ZIP_DEFLATED)
# unsupported: sparse, quantized
torch.save({'s':torch.eye(2).to_sparse()},out+'/sparse.pt')
torch.save({'q':torch.quantize_per_tensor(torch.ones(2),0.1,0,torch.qint8)},out+'/quantized.pt')
torch.save({'w':torch.ones(2)},out+'/legacy.pt',_use_new_zipfile_serialization=False)
def nemo(path,mode,fmt,long=False):
    with tarfile.open(path,mode,format=fmt) as t:
        def add(name,data):
            i=tarfile.TarInfo(name); i.size=len(data); t.addfile(i,io.BytesIO(data))
        d=tarfile.TarInfo('./'); d.type=tarfile.DIRTYPE; t.addfile(d)
        add('./0123_tokenizer.model',b'tokens')
        add('./model_config.yaml',b'sample_rate: 16000\n')
        if long: add('./'+'long_'*40+'.txt',b'long')
        b=io.BytesIO(); torch.save(net.state_dict(),b)
        add('./model_weights.ckpt',b.getvalue())
nemo(out+'/plain.nemo','w',tarfile.GNU_FORMAT,True)
nemo(out+'/gzip.nemo','w:gz',tarfile.PAX_FORMAT,True)
# npy
a=np.arange(6,dtype=np.float32).reshape(2,3)
np.save(out+'/f32.npy',a); np.save(out+'/fortran.npy',np.asfortranarray(a.astype('<i2')))
np.save(out+'/scalar.npy',np.float64(2.5)); np.save(out+'/f16.npy',np.float16([1.5,-2]))
with open(out+'/version3.npy','wb') as f: np.lib.format.write_array(f,np.array([True,False]),version=(3,0))
np.save(out+'/record.npy',np.zeros(2,dtype=[('a','<f4'),('b','<i4')]))
np.save(out+'/big_endian.npy',a.astype('>f4'))
# onnx
import onnx
from onnx import helper, TensorProto, numpy_helper
def t(name,dt,dims,vals,raw=False): return helper.make_tensor(name,dt,dims,vals,raw=raw)
inits=[numpy_helper.from_array(a,'raw_f32'),
 t('float_data',TensorProto.FLOAT,[2],[1.5,-2]),
 t('int64_data',TensorProto.INT64,[2],[2**40,-1]),
 t('int32_data',TensorProto.INT32,[2],[7,-8]),
 t('int8_data',TensorProto.INT8,[2],[7,-8]),
 t('bool_data',TensorProto.BOOL,[2],[True,False]),
 t('half_data',TensorProto.FLOAT16,[2],[1.5,-2]),
 t('bf16_data',TensorProto.BFLOAT16,[2],[1.5,-2]),
 t('double_data',TensorProto.DOUBLE,[1],[0.1]),
 t('uint64_data',TensorProto.UINT64,[1],[2**40]),
 t('uint32_data',TensorProto.UINT32,[1],[2**32-1]),
 t('text',TensorProto.STRING,[1],[b'x']),
]
def branch(v):
    c=helper.make_node('Constant',[],['weight'],value=numpy_helper.from_array(np.float32([v]),'w'))
    return helper.make_graph([c],'g',[],[helper.make_tensor_value_info('weight',TensorProto.FLOAT,[1])])
cond=helper.make_node('Constant',[],['cond'],value=numpy_helper.from_array(np.array(True)))
i=helper.make_node('If',['cond'],['y'],name='If_0',then_branch=branch(1),else_branch=branch(2))
g=helper.make_graph([cond,i],'main',[],[helper.make_tensor_value_info('y',TensorProto.FLOAT,[1])],initializer=inits)
m=helper.make_model(g,producer_name='maker',opset_imports=[helper.make_opsetid('',16)])
helper.set_model_props(m,{'language':'en'})
onnx.save(m,out+'/model.onnx')
# gguf
import gguf
w=gguf.GGUFWriter(out+'/python.gguf','testarch')
w.add_uint8('t.u8',200); w.add_int8('t.i8',-3); w.add_uint16('t.u16',60000); w.add_int16('t.i16',-300)
w.add_uint32('t.u32',4000000000); w.add_int32('t.i32',-5); w.add_float32('t.f32',1.5); w.add_bool('t.bool',True)
w.add_string('t.string','日本'); w.add_array('t.strings',['a','','bc']); w.add_array('t.ints',[1,-2]); w.add_array('t.floats',[0.5,2.0])
w.add_uint64('t.u64',2**63); w.add_int64('t.i64',-2**63); w.add_float64('t.f64',0.35)
w.add_tensor('a.weight',a); w.add_tensor('b.bias',np.float16([1,2,3]))
w.add_tensor('c.weight',gguf.quants.quantize(np.linspace(-1,1,64,dtype=np.float32).reshape(2,32),gguf.GGMLQuantizationType.Q8_0),raw_dtype=gguf.GGMLQuantizationType.Q8_0)
w.add_tensor('d.weight',np.float32([[[1,2,3]]]))
w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
